from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

T = TypeVar("T", bound="EndEvent")


@_attrs_define
class EndEvent:
    exit_code: int
    """ Exit code; 128+n for signal n. """

    def to_dict(self) -> dict[str, Any]:
        exit_code = self.exit_code

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "exit_code": exit_code,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        exit_code = d.pop("exit_code")

        end_event = cls(
            exit_code=exit_code,
        )

        return end_event
