from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.create_snapshot_input_body_labels import CreateSnapshotInputBodyLabels


T = TypeVar("T", bound="CreateSnapshotInputBody")


@_attrs_define
class CreateSnapshotInputBody:
    labels: CreateSnapshotInputBodyLabels | Unset = UNSET
    """ Labels. """
    name: str | Unset = UNSET
    """ Name, unique among the project's snapshots. """
    store: str | Unset = UNSET
    """ URL of an object store for a copy, of which other nodes make sessions: one that the server permits
    (disks.stores); absent: its node alone has it. """

    def to_dict(self) -> dict[str, Any]:
        labels: dict[str, Any] | Unset = UNSET
        if not isinstance(self.labels, Unset):
            labels = self.labels.to_dict()

        name = self.name

        store = self.store

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if labels is not UNSET:
            field_dict["labels"] = labels
        if name is not UNSET:
            field_dict["name"] = name
        if store is not UNSET:
            field_dict["store"] = store

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.create_snapshot_input_body_labels import (
            CreateSnapshotInputBodyLabels,  # noqa: PLC0415
        )

        d = dict(src_dict)
        _labels = d.pop("labels", UNSET)
        labels: CreateSnapshotInputBodyLabels | Unset
        if isinstance(_labels, Unset):
            labels = UNSET
        else:
            labels = CreateSnapshotInputBodyLabels.from_dict(_labels)

        name = d.pop("name", UNSET)

        store = d.pop("store", UNSET)

        create_snapshot_input_body = cls(
            labels=labels,
            name=name,
            store=store,
        )

        return create_snapshot_input_body
