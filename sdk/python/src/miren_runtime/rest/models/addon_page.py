from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.addon import Addon


T = TypeVar("T", bound="AddonPage")


@_attrs_define
class AddonPage:
    addons: list[Addon]
    """ Addons, in the order of their ids. """
    next_cursor: str | Unset = UNSET
    """ For the next page; absent on the last. """

    def to_dict(self) -> dict[str, Any]:
        addons = []
        for addons_item_data in self.addons:
            addons_item = addons_item_data.to_dict()
            addons.append(addons_item)

        next_cursor = self.next_cursor

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "addons": addons,
            }
        )
        if next_cursor is not UNSET:
            field_dict["next_cursor"] = next_cursor

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.addon import Addon  # noqa: PLC0415

        d = dict(src_dict)
        addons = []
        _addons = d.pop("addons")
        for addons_item_data in _addons:
            addons_item = Addon.from_dict(addons_item_data)

            addons.append(addons_item)

        next_cursor = d.pop("next_cursor", UNSET)

        addon_page = cls(
            addons=addons,
            next_cursor=next_cursor,
        )

        return addon_page
