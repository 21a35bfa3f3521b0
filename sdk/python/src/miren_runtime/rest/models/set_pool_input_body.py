from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="SetPoolInputBody")


@_attrs_define
class SetPoolInputBody:
    idle_seconds: int | Unset = UNSET
    """ Time without a session from it after which only min are kept; absent: as it is. """
    max_: int | Unset = UNSET
    """ Most warm sandboxes; absent: as it is. """
    min_: int | Unset = UNSET
    """ Warm sandboxes that are always kept; absent: as it is. """

    def to_dict(self) -> dict[str, Any]:
        idle_seconds = self.idle_seconds

        max_ = self.max_

        min_ = self.min_

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if idle_seconds is not UNSET:
            field_dict["idle_seconds"] = idle_seconds
        if max_ is not UNSET:
            field_dict["max"] = max_
        if min_ is not UNSET:
            field_dict["min"] = min_

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        idle_seconds = d.pop("idle_seconds", UNSET)

        max_ = d.pop("max", UNSET)

        min_ = d.pop("min", UNSET)

        set_pool_input_body = cls(
            idle_seconds=idle_seconds,
            max_=max_,
            min_=min_,
        )

        return set_pool_input_body
