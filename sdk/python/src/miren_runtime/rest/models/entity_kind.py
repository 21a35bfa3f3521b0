from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.entity_kind_scope import EntityKindScope, check_entity_kind_scope

T = TypeVar("T", bound="EntityKind")


@_attrs_define
class EntityKind:
    doc: str
    """ What it is. """
    name: str
    """ Name. """
    plural: str
    """ Plural. """
    scope: EntityKindScope
    """ cluster: its entities belong to no project, and keys do not read them. """

    def to_dict(self) -> dict[str, Any]:
        doc = self.doc

        name = self.name

        plural = self.plural

        scope: str = self.scope

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "doc": doc,
                "name": name,
                "plural": plural,
                "scope": scope,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        doc = d.pop("doc")

        name = d.pop("name")

        plural = d.pop("plural")

        scope = check_entity_kind_scope(d.pop("scope"))

        entity_kind = cls(
            doc=doc,
            name=name,
            plural=plural,
            scope=scope,
        )

        return entity_kind
