"""Templates that PyPI's e2b builds, against a real server (docs/e2b.md)."""
import os
import tempfile
import time

import httpx
from e2b import BuildException, Sandbox, Template, wait_for_file, wait_for_port
from e2b.template.types import TemplateBuildStatus

run = f"py-{os.getpid()}"
context = tempfile.mkdtemp()
os.makedirs(f"{context}/app/sub")
for name, text in {"app/one.txt": "one\n", "app/sub/two.txt": "two\n", "tool.sh": "#!/bin/bash\necho tool\n", ".dockerignore": "app/ignored\n", "app/ignored": "x"}.items():
    with open(f"{context}/{name}", "w") as f:
        f.write(text)
os.chmod(f"{context}/tool.sh", 0o755)


def check(box, command, want):
    got = box.commands.run(command).stdout
    assert got == want, (command, got, want)


template = (
    Template(file_context_path=context)
    .from_base_image()
    .set_envs({"GREETING": 'it\'s "quoted" $HOME'})
    .copy("app", "/home/user/app")
    .copy("tool.sh", "/usr/local/bin/tool", user="root", mode=0o755)
    .run_cmd("id -un > whoami; [[ -f app/one.txt ]] && echo 'it'\"'\"'s' > bash")
    .run_cmd("id -un > /root-was-here", user="root")
    .set_workdir("/home/user/app")
    .run_cmd("pwd > ../where")
    .set_start_cmd("cd /home/user/app && exec python3 -m http.server 8000", wait_for_port(8000))
)
name = f"{run}-app"
assert not Template.exists(name)
logs = []
info = Template.build(template, f"{name}:v1.0", tags=["stable"], cpu_count=1, memory_mb=512, on_build_logs=logs.append)
assert info.template_id == name and set(info.tags) == {"v1.0", "stable"}, info
assert any("Uploaded 'app'" in e.message for e in logs), logs
assert any("whoami" in e.message for e in logs), [e.message for e in logs]
status = Template.get_build_status(info)
assert status.status == TemplateBuildStatus.READY and status.log_entries, status
assert not Template.get_build_status(info, logs_offset=100000).log_entries
assert Template.exists(name) and Template.exists(f"{name}:stable") and not Template.exists(f"{name}:other")

box = Sandbox.create(f"{name}:stable", timeout=120)
try:
    check(box, "cat app/one.txt app/sub/two.txt 2>/dev/null || cat one.txt sub/two.txt", "one\ntwo\n")
    check(box, "ls /home/user/app/ignored 2>/dev/null || echo none", "none\n")
    check(box, "stat -c '%U %a' /home/user/app/one.txt /usr/local/bin/tool; tool", "user 644\nroot 755\ntool\n")
    check(box, "cd; cat whoami bash where /root-was-here; echo $GREETING", "user\nit's\n/home/user/app\nroot\nit's \"quoted\" $HOME\n")
    # Its start command was ready when the sandbox was given out.
    check(box, "curl -s localhost:8000/one.txt", "one\n")
    assert box.get_info().memory_mb == 512, box.get_info()
finally:
    assert box.kill()

# Tags.
tags = {t.tag: t.build_id for t in Template.get_tags(name)}
assert set(tags) == {"v1.0", "stable"}, tags
assigned = Template.assign_tags(f"{name}:stable", ["production", "default"])
assert assigned.build_id == tags["stable"], (assigned, tags)
assert {t.tag for t in Template.get_tags(name)} == {"v1.0", "stable", "production", "default"}
Template.remove_tags(name, "production")
assert {t.tag for t in Template.get_tags(name)} == {"v1.0", "stable", "default"}

# In the background, from the template that was built. Files that are known are not sent again.
derived = Template(file_context_path=context).from_template(f"{name}:default").copy("app", "/home/user/app").run_cmd("echo derived > /home/user/derived")
logs = []
info = Template.build_in_background(derived, f"{run}-derived", on_build_logs=logs.append)
assert any("already cached" in e.message for e in logs), [e.message for e in logs]
assert info.tags == ["default"], info
end, offset = time.time() + 240, 0
while (status := Template.get_build_status(info, logs_offset=offset)).status in (TemplateBuildStatus.WAITING, TemplateBuildStatus.BUILDING):
    offset += len(status.log_entries)
    assert time.time() < end, status
    time.sleep(0.2)
assert status.status == TemplateBuildStatus.READY, status
box = Sandbox.create(f"{run}-derived", timeout=120)
try:
    check(box, "cat /home/user/derived; id -un", "derived\nuser\n")
finally:
    assert box.kill()

# An image of this machine.
image = Template().from_image("debian:bookworm-slim").run_cmd("touch made").set_ready_cmd(wait_for_file("/home/user/made"))
Template.build(image, f"{run}-image")
box = Sandbox.create(f"{run}-image", timeout=120)
try:
    check(box, "id -un; pwd; ls; . /etc/os-release; echo $VERSION_CODENAME", "user\n/home/user\nmade\nbookworm\n")
finally:
    assert box.kill()


# What fails says why.
def fails(template, name, want):
    try:
        Template.build(template, name)
    except BuildException as e:
        assert want in str(e), (want, str(e))
        return
    raise AssertionError(f"{name} was built")


fails(Template().from_base_image().run_cmd("echo it broke; exit 9"), f"{run}-failed", "exit code 9")
fails(Template().from_image("registry.example.com/nothing:1"), f"{run}-unreachable", "registry.example.com/nothing")
fails(Template().from_image("private/image", username="u", password="p"), f"{run}-private", "fromImageRegistry")
fails(Template().from_template("no-such-template"), f"{run}-nothing", "no-such-template")
fails(Template().from_base_image(), "python", "comes with the system")

# The calls that the SDK has no method for.
api = httpx.Client(base_url=os.environ["E2B_API_URL"], headers={"X-API-Key": os.environ["E2B_API_KEY"]})
listed = {t["templateID"]: t for t in api.get("/templates").json()}
assert listed[name]["memoryMB"] == 512 and listed[f"{run}-failed"]["buildStatus"] == "error", listed
assert api.get("/templates/nothing/builds/nothing/status").status_code == 404
anonymous = httpx.Client(base_url=os.environ["E2B_API_URL"])
assert anonymous.put("/templates/files/" + "0" * 64, content=b"x").status_code == 401
for t in listed:
    if t.startswith(run):
        assert api.delete(f"/templates/{t}").status_code == 204
assert not Template.exists(name)
assert api.delete("/templates/base").status_code == 409
