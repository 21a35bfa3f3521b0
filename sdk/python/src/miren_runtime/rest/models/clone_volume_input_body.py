from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="CloneVolumeInputBody")


@_attrs_define
class CloneVolumeInputBody:
    name: str
    """ Name of the new volume. """
    at: datetime.datetime | Unset = UNSET
    """ Instead of a snapshot: it gets the content of the newest one that is not after this time. """
    snapshot: str | Unset = UNSET
    """ Snapshot whose content it gets; absent: the present state. """

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        at: str | Unset = UNSET
        if not isinstance(self.at, Unset):
            at = self.at.isoformat()

        snapshot = self.snapshot

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "name": name,
            }
        )
        if at is not UNSET:
            field_dict["at"] = at
        if snapshot is not UNSET:
            field_dict["snapshot"] = snapshot

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        name = d.pop("name")

        _at = d.pop("at", UNSET)
        at: datetime.datetime | Unset
        if isinstance(_at, Unset):
            at = UNSET
        else:
            at = datetime.datetime.fromisoformat(_at)

        snapshot = d.pop("snapshot", UNSET)

        clone_volume_input_body = cls(
            name=name,
            at=at,
            snapshot=snapshot,
        )

        return clone_volume_input_body
