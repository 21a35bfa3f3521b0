from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="CloneVolumeInputBody")


@_attrs_define
class CloneVolumeInputBody:
    name: str
    """ Name of the new volume. """
    snapshot: str | Unset = UNSET
    """ Snapshot whose content it gets; absent: the present state. """

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        snapshot = self.snapshot

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "name": name,
            }
        )
        if snapshot is not UNSET:
            field_dict["snapshot"] = snapshot

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        name = d.pop("name")

        snapshot = d.pop("snapshot", UNSET)

        clone_volume_input_body = cls(
            name=name,
            snapshot=snapshot,
        )

        return clone_volume_input_body
