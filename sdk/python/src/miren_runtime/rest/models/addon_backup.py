from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.addon_backup_state import AddonBackupState, check_addon_backup_state
from ..types import UNSET, Unset

T = TypeVar("T", bound="AddonBackup")


@_attrs_define
class AddonBackup:
    created_at: datetime.datetime
    """ Time of its creation. """
    name: str
    """ Name among those of the volume. """
    state: AddonBackupState
    """ State. """
    volume: str
    """ Name of the disk that it is a snapshot of. """
    message: str | Unset = UNSET
    """ Reason why it is not ready. """
    scheduled: bool | Unset = UNSET
    """ The schedule of the volume took it and deletes it. """
    size_bytes: int | Unset = UNSET
    """ Size of the volume then. """
    taken_at: datetime.datetime | Unset = UNSET
    """ Time of the state that it has. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        name = self.name

        state: str = self.state

        volume = self.volume

        message = self.message

        scheduled = self.scheduled

        size_bytes = self.size_bytes

        taken_at: str | Unset = UNSET
        if not isinstance(self.taken_at, Unset):
            taken_at = self.taken_at.isoformat()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "name": name,
                "state": state,
                "volume": volume,
            }
        )
        if message is not UNSET:
            field_dict["message"] = message
        if scheduled is not UNSET:
            field_dict["scheduled"] = scheduled
        if size_bytes is not UNSET:
            field_dict["size_bytes"] = size_bytes
        if taken_at is not UNSET:
            field_dict["taken_at"] = taken_at

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        name = d.pop("name")

        state = check_addon_backup_state(d.pop("state"))

        volume = d.pop("volume")

        message = d.pop("message", UNSET)

        scheduled = d.pop("scheduled", UNSET)

        size_bytes = d.pop("size_bytes", UNSET)

        _taken_at = d.pop("taken_at", UNSET)
        taken_at: datetime.datetime | Unset
        if isinstance(_taken_at, Unset):
            taken_at = UNSET
        else:
            taken_at = datetime.datetime.fromisoformat(_taken_at)

        addon_backup = cls(
            created_at=created_at,
            name=name,
            state=state,
            volume=volume,
            message=message,
            scheduled=scheduled,
            size_bytes=size_bytes,
            taken_at=taken_at,
        )

        return addon_backup
