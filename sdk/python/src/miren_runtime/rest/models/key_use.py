from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

T = TypeVar("T", bound="KeyUse")


@_attrs_define
class KeyUse:
    executions: int
    """ Executions that wait or run. """
    sandboxes: int
    """ Sandboxes that run or start. """

    def to_dict(self) -> dict[str, Any]:
        executions = self.executions

        sandboxes = self.sandboxes

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "executions": executions,
                "sandboxes": sandboxes,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        executions = d.pop("executions")

        sandboxes = d.pop("sandboxes")

        key_use = cls(
            executions=executions,
            sandboxes=sandboxes,
        )

        return key_use
