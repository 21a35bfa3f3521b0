from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="MountRequest")


@_attrs_define
class MountRequest:
    path: str
    """ Absolute path inside. """
    volume: str
    """ Name of the volume. """
    read_only: bool | Unset = UNSET
    """ It cannot be written there. Many sessions may read a volume, one may write to it. """

    def to_dict(self) -> dict[str, Any]:
        path = self.path

        volume = self.volume

        read_only = self.read_only

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "path": path,
                "volume": volume,
            }
        )
        if read_only is not UNSET:
            field_dict["read_only"] = read_only

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        path = d.pop("path")

        volume = d.pop("volume")

        read_only = d.pop("read_only", UNSET)

        mount_request = cls(
            path=path,
            volume=volume,
            read_only=read_only,
        )

        return mount_request
