from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="RunningCommand")


@_attrs_define
class RunningCommand:
    background: bool
    """ It goes on without its caller, and has a stream. """
    command: list[str]
    """ Command line, cut after 512 bytes. """
    id: str
    """ Id. """
    started_at: datetime.datetime
    """ Start. """
    exit_code: int | Unset = UNSET
    """ It has ended with this code; absent: it runs. """

    def to_dict(self) -> dict[str, Any]:
        background = self.background

        command = self.command

        id = self.id

        started_at = self.started_at.isoformat()

        exit_code = self.exit_code

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "background": background,
                "command": command,
                "id": id,
                "started_at": started_at,
            }
        )
        if exit_code is not UNSET:
            field_dict["exit_code"] = exit_code

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        background = d.pop("background")

        command = cast(list[str], d.pop("command"))

        id = d.pop("id")

        started_at = datetime.datetime.fromisoformat(d.pop("started_at"))

        exit_code = d.pop("exit_code", UNSET)

        running_command = cls(
            background=background,
            command=command,
            id=id,
            started_at=started_at,
            exit_code=exit_code,
        )

        return running_command
