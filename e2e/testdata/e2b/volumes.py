"""Volumes and logs, by PyPI's e2b (docs/e2b.md)."""
import os

import httpx
from e2b import Sandbox, Volume
from e2b.exceptions import NotFoundException

name = f"py-{os.getpid()}"
volume = Volume.create(name)
try:
    assert volume.name == name and name in [v.name for v in Volume.list()]
    assert Volume.get_info(volume.volume_id).name == name
    for text in ("first\n", "second\n"):  # it outlives its sandboxes
        box = Sandbox.create(timeout=120, volume_mounts={"/data": name})
        try:
            box.commands.run(f"printf '{text}' >> /data/kept")
            kept = box.commands.run("cat /data/kept").stdout
        finally:
            assert box.kill()
    assert kept == "first\nsecond\n", kept
    api = httpx.Client(base_url=os.environ["E2B_API_URL"])
    for method, path in (("GET", "/volumes"), ("POST", "/volumes"), ("GET", f"/volumes/{volume.volume_id}"), ("DELETE", f"/volumes/{volume.volume_id}")):
        assert api.request(method, path).status_code == 401, path
finally:
    assert Volume.destroy(volume.volume_id)
assert not Volume.destroy(volume.volume_id)
try:
    Volume.get_info(volume.volume_id)
    raise AssertionError("it is still there")
except NotFoundException:
    pass
