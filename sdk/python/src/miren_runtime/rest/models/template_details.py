from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.template_details_tags import TemplateDetailsTags
    from ..models.template_version import TemplateVersion


T = TypeVar("T", bound="TemplateDetails")


@_attrs_define
class TemplateDetails:
    created_at: datetime.datetime
    """ Time of its creation. """
    name: str
    """ Name. """
    version: int
    """ Number of its newest version. """
    versions: list[TemplateVersion]
    """ Its versions, newest first. """
    aliases: list[str] | Unset = UNSET
    """ Other names. """
    selected: TemplateVersion | Unset = UNSET
    tags: TemplateDetailsTags | Unset = UNSET
    """ Versions by tag. """
    title: str | Unset = UNSET
    """ Description for people. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        name = self.name

        version = self.version

        versions = []
        for versions_item_data in self.versions:
            versions_item = versions_item_data.to_dict()
            versions.append(versions_item)

        aliases: list[str] | Unset = UNSET
        if not isinstance(self.aliases, Unset):
            aliases = self.aliases

        selected: dict[str, Any] | Unset = UNSET
        if not isinstance(self.selected, Unset):
            selected = self.selected.to_dict()

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
                "versions": versions,
            }
        )
        if aliases is not UNSET:
            field_dict["aliases"] = aliases
        if selected is not UNSET:
            field_dict["selected"] = selected
        if tags is not UNSET:
            field_dict["tags"] = tags
        if title is not UNSET:
            field_dict["title"] = title

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.template_details_tags import TemplateDetailsTags  # noqa: PLC0415
        from ..models.template_version import TemplateVersion  # noqa: PLC0415

        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        name = d.pop("name")

        version = d.pop("version")

        versions = []
        _versions = d.pop("versions")
        for versions_item_data in _versions:
            versions_item = TemplateVersion.from_dict(versions_item_data)

            versions.append(versions_item)

        aliases = cast(list[str], d.pop("aliases", UNSET))

        _selected = d.pop("selected", UNSET)
        selected: TemplateVersion | Unset
        if isinstance(_selected, Unset):
            selected = UNSET
        else:
            selected = TemplateVersion.from_dict(_selected)

        _tags = d.pop("tags", UNSET)
        tags: TemplateDetailsTags | Unset
        if isinstance(_tags, Unset):
            tags = UNSET
        else:
            tags = TemplateDetailsTags.from_dict(_tags)

        title = d.pop("title", UNSET)

        template_details = cls(
            created_at=created_at,
            name=name,
            version=version,
            versions=versions,
            aliases=aliases,
            selected=selected,
            tags=tags,
            title=title,
        )

        return template_details
