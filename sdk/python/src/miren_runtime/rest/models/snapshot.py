from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.snapshot_state import SnapshotState, check_snapshot_state
from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.snapshot_labels import SnapshotLabels


T = TypeVar("T", bound="Snapshot")


@_attrs_define
class Snapshot:
    bytes_: int
    """ Space that it takes on the node's disk. """
    created_at: datetime.datetime
    """ Time of its creation. """
    id: str
    """ Id. """
    state: SnapshotState
    """ State. """
    copy_bytes: int | Unset = UNSET
    """ Space that its copy takes in the store. """
    image: str | Unset = UNSET
    """ Image. """
    labels: SnapshotLabels | Unset = UNSET
    """ Labels. """
    message: str | Unset = UNSET
    """ Reason of a failure. """
    name: str | Unset = UNSET
    """ Name. """
    parent: str | Unset = UNSET
    """ The snapshot from which that session was made. """
    ready_at: datetime.datetime | Unset = UNSET
    """ Time at which it was complete. """
    session: str | Unset = UNSET
    """ The session of which it is; absent: that is deleted. """
    store: str | Unset = UNSET
    """ URL of the object store that has a copy; absent: there is none. """

    def to_dict(self) -> dict[str, Any]:
        bytes_ = self.bytes_

        created_at = self.created_at.isoformat()

        id = self.id

        state: str = self.state

        copy_bytes = self.copy_bytes

        image = self.image

        labels: dict[str, Any] | Unset = UNSET
        if not isinstance(self.labels, Unset):
            labels = self.labels.to_dict()

        message = self.message

        name = self.name

        parent = self.parent

        ready_at: str | Unset = UNSET
        if not isinstance(self.ready_at, Unset):
            ready_at = self.ready_at.isoformat()

        session = self.session

        store = self.store

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "bytes": bytes_,
                "created_at": created_at,
                "id": id,
                "state": state,
            }
        )
        if copy_bytes is not UNSET:
            field_dict["copy_bytes"] = copy_bytes
        if image is not UNSET:
            field_dict["image"] = image
        if labels is not UNSET:
            field_dict["labels"] = labels
        if message is not UNSET:
            field_dict["message"] = message
        if name is not UNSET:
            field_dict["name"] = name
        if parent is not UNSET:
            field_dict["parent"] = parent
        if ready_at is not UNSET:
            field_dict["ready_at"] = ready_at
        if session is not UNSET:
            field_dict["session"] = session
        if store is not UNSET:
            field_dict["store"] = store

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.snapshot_labels import SnapshotLabels  # noqa: PLC0415

        d = dict(src_dict)
        bytes_ = d.pop("bytes")

        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        id = d.pop("id")

        state = check_snapshot_state(d.pop("state"))

        copy_bytes = d.pop("copy_bytes", UNSET)

        image = d.pop("image", UNSET)

        _labels = d.pop("labels", UNSET)
        labels: SnapshotLabels | Unset
        if isinstance(_labels, Unset):
            labels = UNSET
        else:
            labels = SnapshotLabels.from_dict(_labels)

        message = d.pop("message", UNSET)

        name = d.pop("name", UNSET)

        parent = d.pop("parent", UNSET)

        _ready_at = d.pop("ready_at", UNSET)
        ready_at: datetime.datetime | Unset
        if isinstance(_ready_at, Unset):
            ready_at = UNSET
        else:
            ready_at = datetime.datetime.fromisoformat(_ready_at)

        session = d.pop("session", UNSET)

        store = d.pop("store", UNSET)

        snapshot = cls(
            bytes_=bytes_,
            created_at=created_at,
            id=id,
            state=state,
            copy_bytes=copy_bytes,
            image=image,
            labels=labels,
            message=message,
            name=name,
            parent=parent,
            ready_at=ready_at,
            session=session,
            store=store,
        )

        return snapshot
