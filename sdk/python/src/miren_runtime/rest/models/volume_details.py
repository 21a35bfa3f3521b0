from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.volume_details_file_system import (
    VolumeDetailsFileSystem,
    check_volume_details_file_system,
)
from ..models.volume_details_state import VolumeDetailsState, check_volume_details_state
from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.volume_mount import VolumeMount


T = TypeVar("T", bound="VolumeDetails")


@_attrs_define
class VolumeDetails:
    created_at: datetime.datetime
    """ Time of its creation. """
    file_system: VolumeDetailsFileSystem
    """ File system. """
    id: str
    """ Id of the disk. """
    mounts: list[VolumeMount]
    """ What has it mounted. """
    name: str
    """ Name. """
    size_bytes: int
    """ Size. """
    state: VolumeDetailsState
    """ State. """
    message: str | Unset = UNSET
    """ Reason why it is not ready. """
    used_bytes: int | Unset = UNSET
    """ Bytes that its files took when that was last read. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        file_system: str = self.file_system

        id = self.id

        mounts = []
        for mounts_item_data in self.mounts:
            mounts_item = mounts_item_data.to_dict()
            mounts.append(mounts_item)

        name = self.name

        size_bytes = self.size_bytes

        state: str = self.state

        message = self.message

        used_bytes = self.used_bytes

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "file_system": file_system,
                "id": id,
                "mounts": mounts,
                "name": name,
                "size_bytes": size_bytes,
                "state": state,
            }
        )
        if message is not UNSET:
            field_dict["message"] = message
        if used_bytes is not UNSET:
            field_dict["used_bytes"] = used_bytes

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.volume_mount import VolumeMount  # noqa: PLC0415

        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        file_system = check_volume_details_file_system(d.pop("file_system"))

        id = d.pop("id")

        mounts = []
        _mounts = d.pop("mounts")
        for mounts_item_data in _mounts:
            mounts_item = VolumeMount.from_dict(mounts_item_data)

            mounts.append(mounts_item)

        name = d.pop("name")

        size_bytes = d.pop("size_bytes")

        state = check_volume_details_state(d.pop("state"))

        message = d.pop("message", UNSET)

        used_bytes = d.pop("used_bytes", UNSET)

        volume_details = cls(
            created_at=created_at,
            file_system=file_system,
            id=id,
            mounts=mounts,
            name=name,
            size_bytes=size_bytes,
            state=state,
            message=message,
            used_bytes=used_bytes,
        )

        return volume_details
