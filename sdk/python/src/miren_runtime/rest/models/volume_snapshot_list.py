from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.volume_snapshot import VolumeSnapshot


T = TypeVar("T", bound="VolumeSnapshotList")


@_attrs_define
class VolumeSnapshotList:
    snapshots: list[VolumeSnapshot]
    """ Snapshots, in the order of their ids. """

    def to_dict(self) -> dict[str, Any]:
        snapshots = []
        for snapshots_item_data in self.snapshots:
            snapshots_item = snapshots_item_data.to_dict()
            snapshots.append(snapshots_item)

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "snapshots": snapshots,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.volume_snapshot import VolumeSnapshot  # noqa: PLC0415

        d = dict(src_dict)
        snapshots = []
        _snapshots = d.pop("snapshots")
        for snapshots_item_data in _snapshots:
            snapshots_item = VolumeSnapshot.from_dict(snapshots_item_data)

            snapshots.append(snapshots_item)

        volume_snapshot_list = cls(
            snapshots=snapshots,
        )

        return volume_snapshot_list
