from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.input_file import InputFile
    from ..models.ready import Ready
    from ..models.step import Step
    from ..models.template_build_env import TemplateBuildEnv
    from ..models.template_build_secrets import TemplateBuildSecrets


T = TypeVar("T", bound="TemplateBuild")


@_attrs_define
class TemplateBuild:
    aliases: list[str] | Unset = UNSET
    """ Other names of the template. """
    cpu_millis: int | Unset = UNSET
    """ CPU of its sandboxes, in thousandths. """
    disk_bytes: int | Unset = UNSET
    """ Bytes that its sandboxes may write. """
    dockerfile: str | Unset = UNSET
    """ Text of a Dockerfile. """
    env: TemplateBuildEnv | Unset = UNSET
    """ Environment variables of its sandboxes. """
    files: list[InputFile] | Unset = UNSET
    """ Files for the Dockerfile or the steps, with relative paths; at most 8 MiB together. """
    image: str | Unset = UNSET
    """ Image as it is: a base image, or one that a build of the project made, with its digest. """
    memory_bytes: int | Unset = UNSET
    """ Memory of its sandboxes. """
    no_cache: bool | Unset = UNSET
    """ Do not reuse earlier results. """
    ready: Ready | Unset = UNSET
    secrets: TemplateBuildSecrets | Unset = UNSET
    """ Values of build secrets: steps read them, the image does not have them. """
    start: list[str] | Unset = UNSET
    """ Command that runs in every sandbox from its start on. """
    steps: list[Step] | Unset = UNSET
    """ Steps. """
    tags: list[str] | Unset = UNSET
    """ Tags that it gets when it is built; absent: latest. """
    title: str | Unset = UNSET
    """ Description for people; absent: as it is. """
    user: str | Unset = UNSET
    """ User of the processes; absent: the image's. """
    workdir: str | Unset = UNSET
    """ Working directory; absent: the image's. """

    def to_dict(self) -> dict[str, Any]:
        aliases: list[str] | Unset = UNSET
        if not isinstance(self.aliases, Unset):
            aliases = self.aliases

        cpu_millis = self.cpu_millis

        disk_bytes = self.disk_bytes

        dockerfile = self.dockerfile

        env: dict[str, Any] | Unset = UNSET
        if not isinstance(self.env, Unset):
            env = self.env.to_dict()

        files: list[dict[str, Any]] | Unset = UNSET
        if not isinstance(self.files, Unset):
            files = []
            for files_item_data in self.files:
                files_item = files_item_data.to_dict()
                files.append(files_item)

        image = self.image

        memory_bytes = self.memory_bytes

        no_cache = self.no_cache

        ready: dict[str, Any] | Unset = UNSET
        if not isinstance(self.ready, Unset):
            ready = self.ready.to_dict()

        secrets: dict[str, Any] | Unset = UNSET
        if not isinstance(self.secrets, Unset):
            secrets = self.secrets.to_dict()

        start: list[str] | Unset = UNSET
        if not isinstance(self.start, Unset):
            start = self.start

        steps: list[dict[str, Any]] | Unset = UNSET
        if not isinstance(self.steps, Unset):
            steps = []
            for steps_item_data in self.steps:
                steps_item = steps_item_data.to_dict()
                steps.append(steps_item)

        tags: list[str] | Unset = UNSET
        if not isinstance(self.tags, Unset):
            tags = self.tags

        title = self.title

        user = self.user

        workdir = self.workdir

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if aliases is not UNSET:
            field_dict["aliases"] = aliases
        if cpu_millis is not UNSET:
            field_dict["cpu_millis"] = cpu_millis
        if disk_bytes is not UNSET:
            field_dict["disk_bytes"] = disk_bytes
        if dockerfile is not UNSET:
            field_dict["dockerfile"] = dockerfile
        if env is not UNSET:
            field_dict["env"] = env
        if files is not UNSET:
            field_dict["files"] = files
        if image is not UNSET:
            field_dict["image"] = image
        if memory_bytes is not UNSET:
            field_dict["memory_bytes"] = memory_bytes
        if no_cache is not UNSET:
            field_dict["no_cache"] = no_cache
        if ready is not UNSET:
            field_dict["ready"] = ready
        if secrets is not UNSET:
            field_dict["secrets"] = secrets
        if start is not UNSET:
            field_dict["start"] = start
        if steps is not UNSET:
            field_dict["steps"] = steps
        if tags is not UNSET:
            field_dict["tags"] = tags
        if title is not UNSET:
            field_dict["title"] = title
        if user is not UNSET:
            field_dict["user"] = user
        if workdir is not UNSET:
            field_dict["workdir"] = workdir

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.input_file import InputFile  # noqa: PLC0415
        from ..models.ready import Ready  # noqa: PLC0415
        from ..models.step import Step  # noqa: PLC0415
        from ..models.template_build_env import TemplateBuildEnv  # noqa: PLC0415
        from ..models.template_build_secrets import TemplateBuildSecrets  # noqa: PLC0415

        d = dict(src_dict)
        aliases = cast(list[str], d.pop("aliases", UNSET))

        cpu_millis = d.pop("cpu_millis", UNSET)

        disk_bytes = d.pop("disk_bytes", UNSET)

        dockerfile = d.pop("dockerfile", UNSET)

        _env = d.pop("env", UNSET)
        env: TemplateBuildEnv | Unset
        if isinstance(_env, Unset):
            env = UNSET
        else:
            env = TemplateBuildEnv.from_dict(_env)

        _files = d.pop("files", UNSET)
        files: list[InputFile] | Unset = UNSET
        if _files is not UNSET:
            files = []
            for files_item_data in _files:
                files_item = InputFile.from_dict(files_item_data)

                files.append(files_item)

        image = d.pop("image", UNSET)

        memory_bytes = d.pop("memory_bytes", UNSET)

        no_cache = d.pop("no_cache", UNSET)

        _ready = d.pop("ready", UNSET)
        ready: Ready | Unset
        if isinstance(_ready, Unset):
            ready = UNSET
        else:
            ready = Ready.from_dict(_ready)

        _secrets = d.pop("secrets", UNSET)
        secrets: TemplateBuildSecrets | Unset
        if isinstance(_secrets, Unset):
            secrets = UNSET
        else:
            secrets = TemplateBuildSecrets.from_dict(_secrets)

        start = cast(list[str], d.pop("start", UNSET))

        _steps = d.pop("steps", UNSET)
        steps: list[Step] | Unset = UNSET
        if _steps is not UNSET:
            steps = []
            for steps_item_data in _steps:
                steps_item = Step.from_dict(steps_item_data)

                steps.append(steps_item)

        tags = cast(list[str], d.pop("tags", UNSET))

        title = d.pop("title", UNSET)

        user = d.pop("user", UNSET)

        workdir = d.pop("workdir", UNSET)

        template_build = cls(
            aliases=aliases,
            cpu_millis=cpu_millis,
            disk_bytes=disk_bytes,
            dockerfile=dockerfile,
            env=env,
            files=files,
            image=image,
            memory_bytes=memory_bytes,
            no_cache=no_cache,
            ready=ready,
            secrets=secrets,
            start=start,
            steps=steps,
            tags=tags,
            title=title,
            user=user,
            workdir=workdir,
        )

        return template_build
