from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="Ready")


@_attrs_define
class Ready:
    command: list[str] | Unset = UNSET
    """ It exits with 0. """
    path: str | Unset = UNSET
    """ With port: GET of it answers below 400. """
    port: int | Unset = UNSET
    """ It is listened on. """
    timeout_seconds: int | Unset = UNSET
    """ Longest time until then; absent: a minute. """

    def to_dict(self) -> dict[str, Any]:
        command: list[str] | Unset = UNSET
        if not isinstance(self.command, Unset):
            command = self.command

        path = self.path

        port = self.port

        timeout_seconds = self.timeout_seconds

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if command is not UNSET:
            field_dict["command"] = command
        if path is not UNSET:
            field_dict["path"] = path
        if port is not UNSET:
            field_dict["port"] = port
        if timeout_seconds is not UNSET:
            field_dict["timeout_seconds"] = timeout_seconds

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        command = cast(list[str], d.pop("command", UNSET))

        path = d.pop("path", UNSET)

        port = d.pop("port", UNSET)

        timeout_seconds = d.pop("timeout_seconds", UNSET)

        ready = cls(
            command=command,
            path=path,
            port=port,
            timeout_seconds=timeout_seconds,
        )

        return ready
