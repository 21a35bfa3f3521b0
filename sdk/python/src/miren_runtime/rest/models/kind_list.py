from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.entity_kind import EntityKind


T = TypeVar("T", bound="KindList")


@_attrs_define
class KindList:
    kinds: list[EntityKind]
    """ Kinds by name. """

    def to_dict(self) -> dict[str, Any]:
        kinds = []
        for kinds_item_data in self.kinds:
            kinds_item = kinds_item_data.to_dict()
            kinds.append(kinds_item)

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "kinds": kinds,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.entity_kind import EntityKind  # noqa: PLC0415

        d = dict(src_dict)
        kinds = []
        _kinds = d.pop("kinds")
        for kinds_item_data in _kinds:
            kinds_item = EntityKind.from_dict(kinds_item_data)

            kinds.append(kinds_item)

        kind_list = cls(
            kinds=kinds,
        )

        return kind_list
