from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="SalvageVolumeInputBody")


@_attrs_define
class SalvageVolumeInputBody:
    name: str
    """ Name of the new volume. """
    node: str | Unset = UNSET
    """ Name or id of the node that has the writes; absent: the one that the volume was last taken over from. """
    takeover: str | Unset = UNSET
    """ Takeover that left the writes out, as takeover-EPOCH-SEQUENCE; absent: the node has the log of one. """

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        node = self.node

        takeover = self.takeover

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "name": name,
            }
        )
        if node is not UNSET:
            field_dict["node"] = node
        if takeover is not UNSET:
            field_dict["takeover"] = takeover

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        name = d.pop("name")

        node = d.pop("node", UNSET)

        takeover = d.pop("takeover", UNSET)

        salvage_volume_input_body = cls(
            name=name,
            node=node,
            takeover=takeover,
        )

        return salvage_volume_input_body
