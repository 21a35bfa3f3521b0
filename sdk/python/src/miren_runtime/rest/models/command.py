from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.command_env import CommandEnv


T = TypeVar("T", bound="Command")


@_attrs_define
class Command:
    command: list[str]
    """ Command line. """
    background: bool | Unset = UNSET
    """ The answer comes at the start, and has the id for the stream of the output; without stdin. """
    env: CommandEnv | Unset = UNSET
    """ More environment variables. """
    stdin: str | Unset = UNSET
    """ Standard input. """
    timeout_seconds: int | Unset = 300
    """ The command is ended after this time, with exit code 124; not one in the background. """
    user: str | Unset = UNSET
    """ User; absent: that of the session. """
    workdir: str | Unset = UNSET
    """ Working directory; absent: that of the session. """

    def to_dict(self) -> dict[str, Any]:
        command = self.command

        background = self.background

        env: dict[str, Any] | Unset = UNSET
        if not isinstance(self.env, Unset):
            env = self.env.to_dict()

        stdin = self.stdin

        timeout_seconds = self.timeout_seconds

        user = self.user

        workdir = self.workdir

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "command": command,
            }
        )
        if background is not UNSET:
            field_dict["background"] = background
        if env is not UNSET:
            field_dict["env"] = env
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
        from ..models.command_env import CommandEnv  # noqa: PLC0415

        d = dict(src_dict)
        command = cast(list[str], d.pop("command"))

        background = d.pop("background", UNSET)

        _env = d.pop("env", UNSET)
        env: CommandEnv | Unset
        if isinstance(_env, Unset):
            env = UNSET
        else:
            env = CommandEnv.from_dict(_env)

        stdin = d.pop("stdin", UNSET)

        timeout_seconds = d.pop("timeout_seconds", UNSET)

        user = d.pop("user", UNSET)

        workdir = d.pop("workdir", UNSET)

        command = cls(
            command=command,
            background=background,
            env=env,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            user=user,
            workdir=workdir,
        )

        return command
