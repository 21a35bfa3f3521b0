"""Contexts of Python: forks of a process that has imported IPython and made its shell.

A context reads requests and writes events, both lines of JSON, by two pipes. What the code prints through sys.stdout
comes as events, in order with its results; what its child processes print comes by the descriptors 1 and 2.
"""

import asyncio
import base64
import contextlib
import gc
import io
import json
import os
import signal
import socket
import sys
import threading
import time
import warnings

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import BaseFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type, Unicode
from traitlets.config import Config

MAX_RESULT = 8 << 20  # bytes of all formats of a result
MAX_CELLS = 100_000  # of a table that is sent as data
DATA = "application/vnd.runtime.data+json"
CHART = "application/vnd.runtime.chart+json"


class Channel:
    """Sends events. An interrupt waits until the event of the main thread is whole."""

    def __init__(self, fd):
        self.fd = fd
        self.lock = threading.RLock()
        self.main = threading.main_thread()
        self.running = False  # an execution is under way
        self.sending = False  # the main thread is within send
        self.interrupted = False
        self.failed = False  # the execution has sent an error

    def send(self, event):
        data = memoryview(json.dumps(event).encode() + b"\n")
        main = threading.current_thread() is self.main
        if main:
            self.sending = True
        try:
            with self.lock:
                while data:
                    data = data[os.write(self.fd, data) :]
        finally:
            if main:
                self.sending = False
        if main and self.interrupted:
            self.on_interrupt()

    def on_interrupt(self, *_):
        self.interrupted = self.sending
        if self.running and not self.sending:
            raise KeyboardInterrupt

    def error(self, name, value, traceback):
        self.failed = True
        self.send({"error": {"name": name, "value": value, "traceback": traceback}})


class Stream(io.TextIOBase):
    """sys.stdout or sys.stderr: sends whole lines, and the rest when it is flushed."""

    encoding, errors = "utf-8", "replace"

    def __init__(self, name, channel, fd):
        self.name, self.channel, self.fd = f"<{name}>", channel, fd
        self.event, self.rest = name, ""

    def writable(self):
        return True

    def fileno(self):
        return self.fd

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self.channel.lock:
            self.rest += text
            if "\n" in text or len(self.rest) > 8192:
                self.flush()
        return len(text)

    def flush(self):
        with self.channel.lock:
            text, self.rest = self.rest, ""
            for start in range(0, len(text), 16384):
                self.channel.send({self.event: text[start : start + 16384]})


class Hook(DisplayHook):
    """Sends the value of the last expression."""

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        self.formats = format_dict

    def finish_displayhook(self):
        sys.stdout.flush()
        sys.stderr.flush()
        send_result(self.shell.channel, self.formats, True)


class Publisher(DisplayPublisher):
    """Sends what display() is given."""

    def publish(self, data, metadata=None, **_):
        sys.stdout.flush()
        sys.stderr.flush()
        send_result(self.shell.channel, data, False)

    def clear_output(self, wait=False):
        pass


def send_result(channel, formats, main):
    texts, size = {}, 0
    for mime, value in sorted(((k, text_of(v)) for k, v in formats.items()), key=lambda f: len(f[1])):
        size += len(json.dumps(value))  # the length that counts for those who pass it on
        if size > MAX_RESULT:
            sys.stderr.write(f"the result is larger than {MAX_RESULT >> 20} MiB as {mime}, which is left out\n")
        else:
            texts[mime] = value
    if texts:
        channel.send({"result": {"formats": texts, "main": main}})


def text_of(value):
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return json.dumps(value, default=str)


class Data(BaseFormatter):
    """The columns of a table of pandas."""

    format_type = Unicode(DATA)
    print_method = "_repr_data_"
    _return_type = (dict, str)


class Chart(BaseFormatter):
    """What a figure of Matplotlib shows."""

    format_type = Unicode(CHART)
    print_method = "_repr_chart_"
    _return_type = (dict, str)

    def __call__(self, obj):
        kind = type(obj)  # Matplotlib removes the formatters that it does not know
        if (kind.__module__, kind.__name__) == ("matplotlib.figure", "Figure"):
            return chart(obj)
        return super().__call__(obj)


def table(frame):
    if frame.size > MAX_CELLS:
        return None
    split = json.loads(frame.to_json(orient="split", date_format="iso", default_handler=str))
    return {str(c): [row[n] for row in split["data"]] for n, c in enumerate(split["columns"])}


def chart(figure):
    try:
        from e2b_charts import chart_figure_to_dict

        return chart_figure_to_dict(figure)
    except Exception:  # a figure of a kind that it does not know
        return None


class Shell(InteractiveShell):
    displayhook_class = Type(Hook)
    display_pub_class = Type(Publisher)
    loop = None  # event loop in which cells with await run
    cancelled = False  # an interrupt cancels what the loop runs

    def init_display_formatter(self):
        super().init_display_formatter()
        formatters = self.display_formatter.formatters
        for kind in (Data, Chart):
            f = kind(parent=self.display_formatter)
            formatters[f.format_type] = f
        for module in ("pandas", "pandas.core.frame"):
            formatters[DATA].for_type_by_name(module, "DataFrame", table)

    def _get_exc_info(self, exc_tuple=None):
        """Leaves out the frames of this module."""
        etype, value, tb = super()._get_exc_info(exc_tuple)
        last = tb
        while last and last.tb_next:
            if last.tb_next.tb_frame.f_code in (Channel.on_interrupt.__code__, run_async.__code__):
                last.tb_next = None
            last = last.tb_next
        return etype, value, tb

    def showtraceback(self, *args, **kwargs):
        if self.cancelled:  # of frames of asyncio
            self.channel.error("KeyboardInterrupt", "", "")
        else:
            super().showtraceback(*args, **kwargs)

    def _showtraceback(self, etype, evalue, stb):
        sys.stdout.flush()
        sys.stderr.flush()
        self.channel.error(etype.__name__, str(evalue), "\n".join(stb))

    def ask_exit(self):
        raise SystemExit

    def enable_gui(self, gui=None):
        pass


def run_async(coro):
    """Runs a coroutine in the context's event loop. An interrupt cancels it."""
    loop = Shell.loop
    if loop is None or loop.is_closed():
        loop = Shell.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # asyncio.run takes it away
    task = loop.create_task(coro)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt:
        Shell.cancelled = True
        task.cancel()
        return loop.run_until_complete(task)
    finally:
        Shell.cancelled = False


def new_shell():
    c = Config()
    c.HistoryManager.enabled = False  # it would start a thread
    c.InteractiveShell.colors = "nocolor"
    shell = Shell.instance(config=c)
    shell.loop_runner = run_async
    warnings.filterwarnings("ignore", message="To exit: use 'exit'")
    return shell


def warm(shell):
    """Has the shell import what it needs for results and tracebacks."""
    null = os.open(os.devnull, os.O_WRONLY)
    shell.channel = Channel(null)
    for code in "1 + 1", "1 / 0":
        execute(shell, shell.channel, {"code": code, "env": {}})
    os.close(null)
    shell.reset()
    shell.execution_count = 1


@contextlib.contextmanager
def variables(env):
    """Sets variables of the environment for one execution."""
    before = {k: os.environ.get(k) for k in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for k, v in before.items():
            if v is None:
                os.environ.pop(k, None)
            else:
                os.environ[k] = v


def execute(shell, channel, request):
    channel.failed = channel.interrupted = False
    error = None
    try:
        channel.running = True
        with variables(request["env"]):
            result = shell.run_cell(request["code"], store_history=True)
            error = result.error_before_exec or result.error_in_exec
        sys.stdout.flush()
        sys.stderr.flush()
        channel.running = False
    except BaseException as e:  # an interrupt after the code, or a fault of a hook
        channel.running = False
        error = e
    if error is not None and not channel.failed:
        channel.error(type(error).__name__, str(error), "")
    channel.send({"end": {"ok": not channel.failed}})


def prepare(request):
    os.environ.update(request["env"])
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    time.tzset()
    if request["workdir"]:
        os.chdir(request["workdir"])


def serve(shell, requests, events, out, err):
    """Is a context until the pipe of requests is closed."""
    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    sys.path[0] = ""
    shell.channel = channel = Channel(events)
    sys.stdout, sys.stderr = Stream("stdout", channel, 1), Stream("stderr", channel, 2)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, channel.on_interrupt)
    reader = os.fdopen(requests, "rb")

    def forked():  # a process of the code: it prints by the descriptors
        os.close(events)
        with contextlib.suppress(OSError):
            os.close(requests)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    os.register_at_fork(after_in_child=forked)
    channel.send({"end": {"ok": True}})
    while line := reader.readline():
        request = json.loads(line)
        if "code" in request:
            execute(shell, channel, request)
        else:
            try:
                prepare(request)
                channel.send({"end": {"ok": True}})
            except OSError:
                channel.send({"end": {"ok": False}})


def fork_contexts(sock):
    """Forks a context for each message, which brings its descriptors, and answers with its process id."""
    shell = new_shell()
    warm(shell)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for contexts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    sock.send(b"ready")
    while True:
        message, fds, _, _ = socket.recv_fds(sock, 16, 4)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            sock.close()
            for fd in fds:
                os.set_inheritable(fd, False)
            try:
                serve(shell, *fds)
            finally:
                os._exit(0)
        for fd in fds:
            os.close(fd)
        sock.send(b"%d" % pid)
