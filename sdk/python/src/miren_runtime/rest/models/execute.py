from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.execute_env import ExecuteEnv
    from ..models.handler import Handler
    from ..models.input_file import InputFile


T = TypeVar("T", bound="Execute")


@_attrs_define
class Execute:
    args: list[str] | Unset = UNSET
    """ Arguments of the program. """
    code: str | Unset = UNSET
    """ The program; absent: command says what runs. """
    command: list[str] | Unset = UNSET
    """ Command line; absent with code. """
    confine: bool | Unset = UNSET
    """ Run code in a second layer inside the sandbox. """
    env: ExecuteEnv | Unset = UNSET
    """ Environment variables of the program. """
    file: str | Unset = UNSET
    """ Name of the program's file; absent: the language's. """
    files: list[InputFile] | Unset = UNSET
    """ More files; at most 8 MiB together with code and stdin. """
    handler: Handler | Unset = UNSET
    language: str | Unset = UNSET
    """ Language of code: python, javascript, typescript, go, rust, java, cpp, csharp, shell. """
    priority: int | Unset = UNSET
    """ Higher ones come first. """
    stdin: str | Unset = UNSET
    """ Standard input. """
    timeout_seconds: int | Unset = UNSET
    """ The program is ended after this time; absent: 5 minutes. """
    user: str | Unset = UNSET
    """ User. """
    workdir: str | Unset = UNSET
    """ Working directory. """

    def to_dict(self) -> dict[str, Any]:
        args: list[str] | Unset = UNSET
        if not isinstance(self.args, Unset):
            args = self.args

        code = self.code

        command: list[str] | Unset = UNSET
        if not isinstance(self.command, Unset):
            command = self.command

        confine = self.confine

        env: dict[str, Any] | Unset = UNSET
        if not isinstance(self.env, Unset):
            env = self.env.to_dict()

        file = self.file

        files: list[dict[str, Any]] | Unset = UNSET
        if not isinstance(self.files, Unset):
            files = []
            for files_item_data in self.files:
                files_item = files_item_data.to_dict()
                files.append(files_item)

        handler: dict[str, Any] | Unset = UNSET
        if not isinstance(self.handler, Unset):
            handler = self.handler.to_dict()

        language = self.language

        priority = self.priority

        stdin = self.stdin

        timeout_seconds = self.timeout_seconds

        user = self.user

        workdir = self.workdir

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if args is not UNSET:
            field_dict["args"] = args
        if code is not UNSET:
            field_dict["code"] = code
        if command is not UNSET:
            field_dict["command"] = command
        if confine is not UNSET:
            field_dict["confine"] = confine
        if env is not UNSET:
            field_dict["env"] = env
        if file is not UNSET:
            field_dict["file"] = file
        if files is not UNSET:
            field_dict["files"] = files
        if handler is not UNSET:
            field_dict["handler"] = handler
        if language is not UNSET:
            field_dict["language"] = language
        if priority is not UNSET:
            field_dict["priority"] = priority
        if stdin is not UNSET:
            field_dict["stdin"] = stdin
        if timeout_seconds is not UNSET:
            field_dict["timeout_seconds"] = timeout_seconds
        if user is not UNSET:
            field_dict["user"] = user
        if workdir is not UNSET:
            field_dict["workdir"] = workdir

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.execute_env import ExecuteEnv  # noqa: PLC0415
        from ..models.handler import Handler  # noqa: PLC0415
        from ..models.input_file import InputFile  # noqa: PLC0415

        d = dict(src_dict)
        args = cast(list[str], d.pop("args", UNSET))

        code = d.pop("code", UNSET)

        command = cast(list[str], d.pop("command", UNSET))

        confine = d.pop("confine", UNSET)

        _env = d.pop("env", UNSET)
        env: ExecuteEnv | Unset
        if isinstance(_env, Unset):
            env = UNSET
        else:
            env = ExecuteEnv.from_dict(_env)

        file = d.pop("file", UNSET)

        _files = d.pop("files", UNSET)
        files: list[InputFile] | Unset = UNSET
        if _files is not UNSET:
            files = []
            for files_item_data in _files:
                files_item = InputFile.from_dict(files_item_data)

                files.append(files_item)

        _handler = d.pop("handler", UNSET)
        handler: Handler | Unset
        if isinstance(_handler, Unset):
            handler = UNSET
        else:
            handler = Handler.from_dict(_handler)

        language = d.pop("language", UNSET)

        priority = d.pop("priority", UNSET)

        stdin = d.pop("stdin", UNSET)

        timeout_seconds = d.pop("timeout_seconds", UNSET)

        user = d.pop("user", UNSET)

        workdir = d.pop("workdir", UNSET)

        execute = cls(
            args=args,
            code=code,
            command=command,
            confine=confine,
            env=env,
            file=file,
            files=files,
            handler=handler,
            language=language,
            priority=priority,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            user=user,
            workdir=workdir,
        )

        return execute
