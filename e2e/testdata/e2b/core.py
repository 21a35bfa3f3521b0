"""The calls of docs/e2b.md that PyPI's e2b makes, against a real server."""
import asyncio
import os
import time

from e2b import (
    AsyncSandbox,
    CommandExitException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxQuery,
    TimeoutException,
)


def raises(kind, f, *args, **kwargs):
    try:
        f(*args, **kwargs)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


def until(what, f):
    end = time.time() + 20
    while not f():
        assert time.time() < end, "never: " + what
        time.sleep(0.05)


run = f"py-{os.getpid()}"
box = Sandbox.create(timeout=300, metadata={"run": run, "userId": "Ä b&c=1"}, envs={"HELLO": "there"})
try:
    r = box.commands.run("echo out $HELLO; echo err >&2")
    assert (r.stdout, r.stderr, r.exit_code) == ("out there\n", "err\n", 0), r
    assert raises(CommandExitException, box.commands.run, "exit 3").exit_code == 3
    raises(TimeoutException, box.commands.run, "sleep 1000", timeout=0.5)
    until("the command is killed", lambda: not box.commands.list())
    h = box.commands.run("read x; echo got $x; exit 4", background=True, stdin=True, timeout=0)
    assert [p.pid for p in box.commands.list()] == [h.pid]
    follower = box.commands.connect(h.pid)
    box.commands.send_stdin(h.pid, "word\n")
    e = raises(CommandExitException, follower.wait)
    assert (e.exit_code, e.stdout) == (4, "got word\n"), e
    killed = box.commands.run("sleep 1000", background=True)
    assert killed.kill()
    assert raises(CommandExitException, killed.wait).exit_code == 137
    assert not box.commands.kill(killed.pid)

    pty = box.pty.create(PtySize(rows=24, cols=80))
    box.pty.resize(pty.pid, PtySize(rows=30, cols=100))
    box.pty.send_stdin(pty.pid, b"stty size; exit 0\n")
    screen = b""

    def keep(data):
        global screen
        screen += data

    pty.wait(on_pty=keep)
    assert b"30 100" in screen, screen

    assert box.files.write("d/1", "Hällo").path == "/home/user/d/1"
    assert box.files.read("d/1") == "Hällo"
    box.files.write_files([{"path": "d/2", "data": "two"}, {"path": "/tmp/3", "data": b"three"}])
    assert box.files.read("/tmp/3", format="bytes") == b"three"
    info = box.files.get_info("d/1")
    assert (info.size, info.owner, info.permissions) == (6, "user", "-rw-r--r--"), info
    assert box.files.make_dir("d/e") and not box.files.make_dir("d/e")
    assert box.files.rename("d/1", "d/e/one").path == "/home/user/d/e/one"
    assert [f.name for f in box.files.list("d")] == ["2", "e"]
    about, stored = {"author": "A b", "Purpose": "x=1"}, {"author": "A b", "purpose": "x=1"}
    assert box.files.write("m/1", "one", metadata=about).metadata == stored
    assert [f.metadata for f in box.files.write_files([{"path": "m/2", "data": "2"}, {"path": "m/3", "data": b"3"}], metadata=about)] == [stored] * 2
    assert box.files.get_info("m/1").metadata == stored
    assert box.files.rename("m/1", "m/4").metadata == stored
    box.files.write("m/2", "again")
    assert [(f.name, f.metadata) for f in box.files.list("m")] == [("2", None), ("3", stored), ("4", stored)]
    box.files.remove("d/2")
    assert not box.files.exists("d/2")
    raises(NotFoundException, box.files.read, "nothing")

    # This client fetches the events of a watch.
    watch = box.files.watch_dir("d", recursive=True)
    box.files.write("d/e/new", "x")
    seen = []

    def created():
        seen.extend(e.name for e in watch.get_new_events())
        return "e/new" in seen

    until("an event", created)
    watch.stop()

    box.set_timeout(600)
    assert 590 < box.get_info().end_at.timestamp() - time.time() <= 600
    found = Sandbox.list(query=SandboxQuery(metadata={"run": run, "userId": "Ä b&c=1"})).next_items()
    assert [s.sandbox_id for s in found] == [box.sandbox_id], found
    assert box.get_metrics()[0].mem_used > 1e6
    box.update_network({"allow_internet_access": False})
    assert box.get_info().allow_internet_access is False

    box.files.write("/tmp/kept", "kept")
    box.pause()
    assert not box.is_running()
    assert Sandbox.connect(box.sandbox_id, timeout=120).files.read("/tmp/kept") == "kept"
    snapshot = box.create_snapshot()
    other = Sandbox.create(snapshot.snapshot_id, timeout=60)
    assert other.files.read("/tmp/kept") == "kept"
    assert other.kill()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)
    for fork in box.fork(count=2, timeout=60):
        assert fork.files.read("/tmp/kept") == "kept"
        assert fork.kill()
finally:
    assert box.kill()
assert not box.is_running()


async def concurrent():
    box = await AsyncSandbox.create(timeout=120)
    try:
        results = await asyncio.gather(*(box.commands.run(f"sleep 0.2; echo {i}") for i in range(8)))
        assert [r.stdout for r in results] == [f"{i}\n" for i in range(8)], results
        seen = []
        watch = await box.files.watch_dir(".", on_event=lambda e: seen.append(e.name))
        await box.files.write("a", "b")
        for _ in range(400):
            if "a" in seen:
                break
            await asyncio.sleep(0.05)
        assert "a" in seen, seen
        await watch.stop()
    finally:
        assert await box.kill()


asyncio.run(concurrent())
