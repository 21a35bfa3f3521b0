"""Sandboxes that are paused at their time-out, and continued by their use (docs/e2b.md)."""
import time

from e2b import NotFoundException, Sandbox, SandboxException, SandboxState


def until(what, f):
    end = time.time() + 40
    while not f():
        assert time.time() < end, "never: " + what
        time.sleep(0.1)


def paused(box):
    return box.get_info().state == SandboxState.PAUSED


def left(box):
    return box.get_info().end_at.timestamp() - time.time()


plain = Sandbox.create(timeout=60)
box = Sandbox.create(timeout=60, lifecycle={"on_timeout": "pause"})
auto = Sandbox.create(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
try:
    assert plain.get_info().lifecycle == {"on_timeout": "kill", "auto_resume": False}, plain.get_info()
    assert box.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": False}, box.get_info()
    assert auto.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": True}, auto.get_info()

    for b in (plain, box, auto):
        b.files.write("/tmp/kept", "kept")
        b.set_timeout(1)
    until("both are paused", lambda: paused(box) and paused(auto))
    until("the other one has ended", lambda: not plain.is_running())
    try:
        plain.get_info()
        raise AssertionError("it is still known")
    except NotFoundException:
        pass
    assert not box.is_running()

    # Only connect continues it.
    try:
        box.commands.run("true")
        raise AssertionError("a command runs in a paused sandbox")
    except SandboxException:
        pass
    assert paused(box)
    again = Sandbox.connect(box.sandbox_id, timeout=60)
    assert again.files.read("/tmp/kept") == "kept"
    assert 50 < left(again) <= 60, left(again)

    # Its use continues it, for five minutes at least.
    assert auto.files.read("/tmp/kept") == "kept"
    assert not paused(auto) and 280 < left(auto) <= 300, left(auto)
    auto.pause()
    assert paused(auto)
    assert auto.commands.run("echo awake").stdout == "awake\n"

    # It is paused again after a resume.
    again.set_timeout(1)
    until("it is paused again", lambda: paused(again))
finally:
    for b in (box, auto):
        assert b.kill()
    plain.kill()
