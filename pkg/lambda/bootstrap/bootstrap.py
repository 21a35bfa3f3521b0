# Runs one invocation of a handler as AWS Lambda does. Reads DIR/request.json and writes DIR/result.json, or
# the file that EXECUTION_RESULT names.
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
import traceback

here = sys.argv[1]
with open(os.path.join(here, "request.json")) as f:
    request = json.load(f)
result = {}


class Identity:
    cognito_identity_id = None
    cognito_identity_pool_id = None


class Context:
    def __init__(self, values, deadline):
        self.identity = Identity()
        self.client_context = None
        self._deadline = deadline
        for name, value in values.items():
            setattr(self, name, value)

    def get_remaining_time_in_millis(self):
        return max(0, int((self._deadline - time.monotonic()) * 1000))

    def log(self, message):
        print(message)


def ms(began):
    return (time.monotonic() - began) * 1000


def describe(error, kind=None):
    frames = traceback.extract_tb(error.__traceback__)
    frames = [f for f in frames if f.filename != __file__ and not f.filename.startswith("<frozen")]
    return {
        "errorMessage": str(error),
        "errorType": kind or type(error).__name__,
        "stackTrace": traceback.format_list(frames),
    }


def finish(outcome):
    result["outcome"] = outcome
    result["max_memory_kb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.flush()
    sys.stderr.flush()
    path = os.environ.get("EXECUTION_RESULT") or os.path.join(here, "result.json")
    with open(path + ".new", "w") as f:
        json.dump(result, f)
    os.rename(path + ".new", path)
    os._exit(0)


def fail(outcome, error, kind=None):
    result["error"] = describe(error, kind)
    finish(outcome)


def install():
    packages = os.path.join(here, "packages")
    began = time.monotonic()
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", packages,
         "-r", "requirements.txt"], stdout=sys.stderr)
    result["install_ms"] = ms(began)
    if pip.returncode:
        fail("error", Exception("pip install -r requirements.txt failed with exit code %d" % pip.returncode),
             "Runtime.Requirements")
    sys.path.insert(0, packages)


def load():
    path = request["file"]
    name = os.path.splitext(os.path.basename(path))[0]
    began = time.monotonic()
    try:
        with open(path, "rb") as f:
            compile(f.read(), path, "exec")
    except SyntaxError as e:
        result["error"] = {
            "errorMessage": "Syntax error in module '%s': %s" % (name, e), "errorType": "Runtime.UserCodeSyntaxError",
            "stackTrace": ['  File "%s" Line %s\n    %s\n' % (path, e.lineno, (e.text or "").strip())],
        }
        finish("syntax")
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except ImportError as e:
        e.msg = "Unable to import module '%s': %s" % (name, e)
        fail("error", e, "Runtime.ImportModuleError")
    except BaseException as e:
        fail("error", e)
    result["init_ms"] = ms(began)
    for function in request["functions"]:
        handler = getattr(module, function, None)
        if callable(handler):
            return handler
    missing = request["functions"][0]
    result["error"] = {
        "errorMessage": "Handler '%s' missing on module '%s'" % (missing, name), "errorType": "Runtime.HandlerNotFound",
        "stackTrace": [],
    }
    finish("undefined")


sys.path.insert(0, os.getcwd())
if os.path.exists("requirements.txt"):
    install()
for layer in request.get("layers") or []:
    sys.path.append(os.path.join(layer, "python"))
handler = load()
began = time.monotonic()
context = Context(request["context"], began + request["timeout_ms"] / 1000)
try:
    value = handler(request["event"], context)
except BaseException as e:
    result["duration_ms"] = ms(began)
    fail("error", e)
result["duration_ms"] = ms(began)
try:
    json.dumps(value)
except (TypeError, ValueError, RecursionError) as e:
    fail("error", Exception("Unable to marshal response: %s" % e), "Runtime.MarshalError")
result["value"] = value
finish("success")
