from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.volume import Volume


T = TypeVar("T", bound="VolumePage")


@_attrs_define
class VolumePage:
    volumes: list[Volume]
    """ Volumes, in the order of their ids. """
    next_cursor: str | Unset = UNSET
    """ For the next page; absent on the last. """

    def to_dict(self) -> dict[str, Any]:
        volumes = []
        for volumes_item_data in self.volumes:
            volumes_item = volumes_item_data.to_dict()
            volumes.append(volumes_item)

        next_cursor = self.next_cursor

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "volumes": volumes,
            }
        )
        if next_cursor is not UNSET:
            field_dict["next_cursor"] = next_cursor

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.volume import Volume  # noqa: PLC0415

        d = dict(src_dict)
        volumes = []
        _volumes = d.pop("volumes")
        for volumes_item_data in _volumes:
            volumes_item = Volume.from_dict(volumes_item_data)

            volumes.append(volumes_item)

        next_cursor = d.pop("next_cursor", UNSET)

        volume_page = cls(
            volumes=volumes,
            next_cursor=next_cursor,
        )

        return volume_page
