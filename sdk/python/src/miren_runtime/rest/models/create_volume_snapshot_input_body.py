from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

T = TypeVar("T", bound="CreateVolumeSnapshotInputBody")


@_attrs_define
class CreateVolumeSnapshotInputBody:
    name: str
    """ Name among those of the volume. """

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "name": name,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        name = d.pop("name")

        create_volume_snapshot_input_body = cls(
            name=name,
        )

        return create_volume_snapshot_input_body
