from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

T = TypeVar("T", bound="ResizeVolumeInputBody")


@_attrs_define
class ResizeVolumeInputBody:
    size_bytes: int
    """ New size, not less than the present one. """

    def to_dict(self) -> dict[str, Any]:
        size_bytes = self.size_bytes

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "size_bytes": size_bytes,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        size_bytes = d.pop("size_bytes")

        resize_volume_input_body = cls(
            size_bytes=size_bytes,
        )

        return resize_volume_input_body
