from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.snapshot import Snapshot


T = TypeVar("T", bound="SnapshotPage")


@_attrs_define
class SnapshotPage:
    snapshots: list[Snapshot]
    """ Snapshots, in the order of their ids. """
    next_cursor: str | Unset = UNSET
    """ For the next page; absent on the last. """

    def to_dict(self) -> dict[str, Any]:
        snapshots = []
        for snapshots_item_data in self.snapshots:
            snapshots_item = snapshots_item_data.to_dict()
            snapshots.append(snapshots_item)

        next_cursor = self.next_cursor

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "snapshots": snapshots,
            }
        )
        if next_cursor is not UNSET:
            field_dict["next_cursor"] = next_cursor

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.snapshot import Snapshot  # noqa: PLC0415

        d = dict(src_dict)
        snapshots = []
        _snapshots = d.pop("snapshots")
        for snapshots_item_data in _snapshots:
            snapshots_item = Snapshot.from_dict(snapshots_item_data)

            snapshots.append(snapshots_item)

        next_cursor = d.pop("next_cursor", UNSET)

        snapshot_page = cls(
            snapshots=snapshots,
            next_cursor=next_cursor,
        )

        return snapshot_page
