from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.entity_page_entities_item import EntityPageEntitiesItem


T = TypeVar("T", bound="EntityPage")


@_attrs_define
class EntityPage:
    entities: list[EntityPageEntitiesItem]
    """ Entities, in the order of their ids. """
    position: str
    """ Position of the list in the changes of the store: Last-Event-ID of the stream that follows it. """
    next_cursor: str | Unset = UNSET
    """ For the next page; absent on the last. """

    def to_dict(self) -> dict[str, Any]:
        entities = []
        for entities_item_data in self.entities:
            entities_item = entities_item_data.to_dict()
            entities.append(entities_item)

        position = self.position

        next_cursor = self.next_cursor

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "entities": entities,
                "position": position,
            }
        )
        if next_cursor is not UNSET:
            field_dict["next_cursor"] = next_cursor

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.entity_page_entities_item import EntityPageEntitiesItem  # noqa: PLC0415

        d = dict(src_dict)
        entities = []
        _entities = d.pop("entities")
        for entities_item_data in _entities:
            entities_item = EntityPageEntitiesItem.from_dict(entities_item_data)

            entities.append(entities_item)

        position = d.pop("position")

        next_cursor = d.pop("next_cursor", UNSET)

        entity_page = cls(
            entities=entities,
            position=position,
            next_cursor=next_cursor,
        )

        return entity_page
