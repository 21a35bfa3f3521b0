from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.volume_file_system import VolumeFileSystem, check_volume_file_system
from ..models.volume_state import VolumeState, check_volume_state
from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.volume_schedule import VolumeSchedule


T = TypeVar("T", bound="Volume")


@_attrs_define
class Volume:
    created_at: datetime.datetime
    """ Time of its creation. """
    file_system: VolumeFileSystem
    """ File system. """
    id: str
    """ Id of the disk. """
    name: str
    """ Name. """
    size_bytes: int
    """ Size. """
    state: VolumeState
    """ State. """
    lost_bytes: int | Unset = UNSET
    """ Bytes of acknowledged writes that the takeover has lost, at least: those that the node had reported and the
    store did not have. """
    lost_most_bytes: int | Unset = UNSET
    """ Bytes of acknowledged writes that the takeover has lost, at most; absent: unknown. """
    lost_reported_at: datetime.datetime | Unset = UNSET
    """ Time of the node's last report, from which lost_bytes is; absent: it made none. Writes after it are not in
    lost_bytes. """
    message: str | Unset = UNSET
    """ Reason why it is not ready. """
    salvage_damaged: bool | Unset = UNSET
    """ That log was damaged, and the volume has the state before the damage; absent: it was not salvaged, or that
    is not known. """
    salvaged_bytes: int | Unset = UNSET
    """ Bytes of writes that it has from the log of which it was salvaged; absent: it was not, or the number is not
    known. """
    schedule: VolumeSchedule | Unset = UNSET
    taken_over_at: datetime.datetime | Unset = UNSET
    """ Time at which it was last taken over from a node that was down; absent: never. """
    taken_over_from: str | Unset = UNSET
    """ Id of the node that it was last taken over from, whose log may have writes that the volume lacks. """
    used_bytes: int | Unset = UNSET
    """ Bytes that its files took when that was last read. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        file_system: str = self.file_system

        id = self.id

        name = self.name

        size_bytes = self.size_bytes

        state: str = self.state

        lost_bytes = self.lost_bytes

        lost_most_bytes = self.lost_most_bytes

        lost_reported_at: str | Unset = UNSET
        if not isinstance(self.lost_reported_at, Unset):
            lost_reported_at = self.lost_reported_at.isoformat()

        message = self.message

        salvage_damaged = self.salvage_damaged

        salvaged_bytes = self.salvaged_bytes

        schedule: dict[str, Any] | Unset = UNSET
        if not isinstance(self.schedule, Unset):
            schedule = self.schedule.to_dict()

        taken_over_at: str | Unset = UNSET
        if not isinstance(self.taken_over_at, Unset):
            taken_over_at = self.taken_over_at.isoformat()

        taken_over_from = self.taken_over_from

        used_bytes = self.used_bytes

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "file_system": file_system,
                "id": id,
                "name": name,
                "size_bytes": size_bytes,
                "state": state,
            }
        )
        if lost_bytes is not UNSET:
            field_dict["lost_bytes"] = lost_bytes
        if lost_most_bytes is not UNSET:
            field_dict["lost_most_bytes"] = lost_most_bytes
        if lost_reported_at is not UNSET:
            field_dict["lost_reported_at"] = lost_reported_at
        if message is not UNSET:
            field_dict["message"] = message
        if salvage_damaged is not UNSET:
            field_dict["salvage_damaged"] = salvage_damaged
        if salvaged_bytes is not UNSET:
            field_dict["salvaged_bytes"] = salvaged_bytes
        if schedule is not UNSET:
            field_dict["schedule"] = schedule
        if taken_over_at is not UNSET:
            field_dict["taken_over_at"] = taken_over_at
        if taken_over_from is not UNSET:
            field_dict["taken_over_from"] = taken_over_from
        if used_bytes is not UNSET:
            field_dict["used_bytes"] = used_bytes

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.volume_schedule import VolumeSchedule  # noqa: PLC0415

        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        file_system = check_volume_file_system(d.pop("file_system"))

        id = d.pop("id")

        name = d.pop("name")

        size_bytes = d.pop("size_bytes")

        state = check_volume_state(d.pop("state"))

        lost_bytes = d.pop("lost_bytes", UNSET)

        lost_most_bytes = d.pop("lost_most_bytes", UNSET)

        _lost_reported_at = d.pop("lost_reported_at", UNSET)
        lost_reported_at: datetime.datetime | Unset
        if isinstance(_lost_reported_at, Unset):
            lost_reported_at = UNSET
        else:
            lost_reported_at = datetime.datetime.fromisoformat(_lost_reported_at)

        message = d.pop("message", UNSET)

        salvage_damaged = d.pop("salvage_damaged", UNSET)

        salvaged_bytes = d.pop("salvaged_bytes", UNSET)

        _schedule = d.pop("schedule", UNSET)
        schedule: VolumeSchedule | Unset
        if isinstance(_schedule, Unset):
            schedule = UNSET
        else:
            schedule = VolumeSchedule.from_dict(_schedule)

        _taken_over_at = d.pop("taken_over_at", UNSET)
        taken_over_at: datetime.datetime | Unset
        if isinstance(_taken_over_at, Unset):
            taken_over_at = UNSET
        else:
            taken_over_at = datetime.datetime.fromisoformat(_taken_over_at)

        taken_over_from = d.pop("taken_over_from", UNSET)

        used_bytes = d.pop("used_bytes", UNSET)

        volume = cls(
            created_at=created_at,
            file_system=file_system,
            id=id,
            name=name,
            size_bytes=size_bytes,
            state=state,
            lost_bytes=lost_bytes,
            lost_most_bytes=lost_most_bytes,
            lost_reported_at=lost_reported_at,
            message=message,
            salvage_damaged=salvage_damaged,
            salvaged_bytes=salvaged_bytes,
            schedule=schedule,
            taken_over_at=taken_over_at,
            taken_over_from=taken_over_from,
            used_bytes=used_bytes,
        )

        return volume
