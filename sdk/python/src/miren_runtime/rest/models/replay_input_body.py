from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="ReplayInputBody")


@_attrs_define
class ReplayInputBody:
    delivery: str | Unset = UNSET
    """ Id of a delivery that has ended; absent: all that are dead. """

    def to_dict(self) -> dict[str, Any]:
        delivery = self.delivery

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if delivery is not UNSET:
            field_dict["delivery"] = delivery

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        delivery = d.pop("delivery", UNSET)

        replay_input_body = cls(
            delivery=delivery,
        )

        return replay_input_body
