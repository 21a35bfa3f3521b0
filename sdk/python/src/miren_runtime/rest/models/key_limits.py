from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="KeyLimits")


@_attrs_define
class KeyLimits:
    max_executions: int | Unset = UNSET
    """ Most executions at the same time; absent: unlimited. """
    max_sandboxes: int | Unset = UNSET
    """ Most sandboxes at the same time, those of its executions included; absent: unlimited. """
    rate: int | Unset = UNSET
    """ Most requests per second; absent: those of the server. """

    def to_dict(self) -> dict[str, Any]:
        max_executions = self.max_executions

        max_sandboxes = self.max_sandboxes

        rate = self.rate

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if max_executions is not UNSET:
            field_dict["max_executions"] = max_executions
        if max_sandboxes is not UNSET:
            field_dict["max_sandboxes"] = max_sandboxes
        if rate is not UNSET:
            field_dict["rate"] = rate

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        max_executions = d.pop("max_executions", UNSET)

        max_sandboxes = d.pop("max_sandboxes", UNSET)

        rate = d.pop("rate", UNSET)

        key_limits = cls(
            max_executions=max_executions,
            max_sandboxes=max_sandboxes,
            rate=rate,
        )

        return key_limits
