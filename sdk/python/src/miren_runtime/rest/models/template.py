from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.template_tags import TemplateTags


T = TypeVar("T", bound="Template")


@_attrs_define
class Template:
    created_at: datetime.datetime
    """ Time of its creation. """
    name: str
    """ Name. """
    version: int
    """ Number of its newest version. """
    aliases: list[str] | Unset = UNSET
    """ Other names. """
    tags: TemplateTags | Unset = UNSET
    """ Versions by tag. """
    title: str | Unset = UNSET
    """ Description for people. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        name = self.name

        version = self.version

        aliases: list[str] | Unset = UNSET
        if not isinstance(self.aliases, Unset):
            aliases = self.aliases

        tags: dict[str, Any] | Unset = UNSET
        if not isinstance(self.tags, Unset):
            tags = self.tags.to_dict()

        title = self.title

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "name": name,
                "version": version,
            }
        )
        if aliases is not UNSET:
            field_dict["aliases"] = aliases
        if tags is not UNSET:
            field_dict["tags"] = tags
        if title is not UNSET:
            field_dict["title"] = title

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.template_tags import TemplateTags  # noqa: PLC0415

        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        name = d.pop("name")

        version = d.pop("version")

        aliases = cast(list[str], d.pop("aliases", UNSET))

        _tags = d.pop("tags", UNSET)
        tags: TemplateTags | Unset
        if isinstance(_tags, Unset):
            tags = UNSET
        else:
            tags = TemplateTags.from_dict(_tags)

        title = d.pop("title", UNSET)

        template = cls(
            created_at=created_at,
            name=name,
            version=version,
            aliases=aliases,
            tags=tags,
            title=title,
        )

        return template
