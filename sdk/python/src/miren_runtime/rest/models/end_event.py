from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="EndEvent")


@_attrs_define
class EndEvent:
    exit_code: int
    """ Exit code; 128+n for signal n. """
    reason: str | Unset = UNSET
    """ Why it was ended from outside: oom, ttl, idle, user; absent: it was not, as far as that is known. """

    def to_dict(self) -> dict[str, Any]:
        exit_code = self.exit_code

        reason = self.reason

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "exit_code": exit_code,
            }
        )
        if reason is not UNSET:
            field_dict["reason"] = reason

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        exit_code = d.pop("exit_code")

        reason = d.pop("reason", UNSET)

        end_event = cls(
            exit_code=exit_code,
            reason=reason,
        )

        return end_event
