from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.idle_input_body_on_idle import (
    IdleInputBodyOnIdle,
    check_idle_input_body_on_idle,
)
from ..types import UNSET, Unset

T = TypeVar("T", bound="IdleInputBody")


@_attrs_define
class IdleInputBody:
    idle_timeout_seconds: int | Unset = UNSET
    """ Time without use after which on_idle happens; absent: never. """
    on_idle: IdleInputBodyOnIdle | Unset = UNSET
    """ What happens then; absent: as before. """

    def to_dict(self) -> dict[str, Any]:
        idle_timeout_seconds = self.idle_timeout_seconds

        on_idle: str | Unset = UNSET
        if not isinstance(self.on_idle, Unset):
            on_idle = self.on_idle

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if idle_timeout_seconds is not UNSET:
            field_dict["idle_timeout_seconds"] = idle_timeout_seconds
        if on_idle is not UNSET:
            field_dict["on_idle"] = on_idle

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        idle_timeout_seconds = d.pop("idle_timeout_seconds", UNSET)

        _on_idle = d.pop("on_idle", UNSET)
        on_idle: IdleInputBodyOnIdle | Unset
        if isinstance(_on_idle, Unset):
            on_idle = UNSET
        else:
            on_idle = check_idle_input_body_on_idle(_on_idle)

        idle_input_body = cls(
            idle_timeout_seconds=idle_timeout_seconds,
            on_idle=on_idle,
        )

        return idle_input_body
