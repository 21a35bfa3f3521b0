from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.create_volume_input_body_file_system import (
    CreateVolumeInputBodyFileSystem,
    check_create_volume_input_body_file_system,
)
from ..types import UNSET, Unset

T = TypeVar("T", bound="CreateVolumeInputBody")


@_attrs_define
class CreateVolumeInputBody:
    name: str
    """ Name. """
    size_bytes: int
    """ Size; 300 MiB at least with xfs. """
    file_system: CreateVolumeInputBodyFileSystem | Unset = "ext4"
    """ File system. """

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        size_bytes = self.size_bytes

        file_system: str | Unset = UNSET
        if not isinstance(self.file_system, Unset):
            file_system = self.file_system

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "name": name,
                "size_bytes": size_bytes,
            }
        )
        if file_system is not UNSET:
            field_dict["file_system"] = file_system

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        name = d.pop("name")

        size_bytes = d.pop("size_bytes")

        _file_system = d.pop("file_system", UNSET)
        file_system: CreateVolumeInputBodyFileSystem | Unset
        if isinstance(_file_system, Unset):
            file_system = UNSET
        else:
            file_system = check_create_volume_input_body_file_system(_file_system)

        create_volume_input_body = cls(
            name=name,
            size_bytes=size_bytes,
            file_system=file_system,
        )

        return create_volume_input_body
