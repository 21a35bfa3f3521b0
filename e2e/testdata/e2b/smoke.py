"""The first calls of a client, for an older version of PyPI's e2b."""
import os

from e2b import CommandExitException, Sandbox, SandboxQuery

metadata = {"run": f"smoke-py-{os.getpid()}"}
box = Sandbox.create(timeout=120, metadata=metadata, envs={"HELLO": "there"})
try:
    r = box.commands.run("echo out $HELLO; echo err >&2")
    assert (r.stdout, r.stderr, r.exit_code) == ("out there\n", "err\n", 0), r
    try:
        box.commands.run("exit 3")
        raise AssertionError("it did not fail")
    except CommandExitException as e:
        assert e.exit_code == 3, e
    assert box.files.write("d/1", "Hällo").path == "/home/user/d/1"
    assert box.files.read("d/1") == "Hällo"
    assert [f.name for f in box.files.list("d")] == ["1"]
    assert not box.files.exists("d/2")
    background = box.commands.run("sleep 1000", background=True)
    assert [p.pid for p in box.commands.list()] == [background.pid]
    assert background.kill()
    found = Sandbox.list(query=SandboxQuery(metadata=metadata)).next_items()
    assert [s.sandbox_id for s in found] == [box.sandbox_id], found
    # What this version sends to a sandbox after connect does not name it.
    assert Sandbox.connect(box.sandbox_id).sandbox_id == box.sandbox_id
finally:
    assert box.kill()
assert not box.is_running()
