from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

T = TypeVar("T", bound="VolumeMount")


@_attrs_define
class VolumeMount:
    container: str
    """ Id of the container; a session has the same. """
    path: str
    """ Path inside. """
    read_only: bool
    """ It cannot write to it. """

    def to_dict(self) -> dict[str, Any]:
        container = self.container

        path = self.path

        read_only = self.read_only

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "container": container,
                "path": path,
                "read_only": read_only,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        container = d.pop("container")

        path = d.pop("path")

        read_only = d.pop("read_only")

        volume_mount = cls(
            container=container,
            path=path,
            read_only=read_only,
        )

        return volume_mount
