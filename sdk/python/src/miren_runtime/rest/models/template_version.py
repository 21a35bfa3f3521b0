from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..models.template_version_state import (
    TemplateVersionState,
    check_template_version_state,
)
from ..types import UNSET, Unset

T = TypeVar("T", bound="TemplateVersion")


@_attrs_define
class TemplateVersion:
    created_at: datetime.datetime
    """ Time of the request for it. """
    number: int
    """ 1, 2, ... """
    state: TemplateVersionState
    """ pending: the first sandbox makes its image. """
    tags: list[str]
    """ Tags that select it. """
    template: str
    """ Name of the template. """
    bytes_: int | Unset = UNSET
    """ Size of its image, compressed. """
    hint: str | Unset = UNSET
    """ What to do about it. """
    image: str | Unset = UNSET
    """ Reference with digest of its image. """
    message: str | Unset = UNSET
    """ Reason of a failure. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        number = self.number

        state: str = self.state

        tags = self.tags

        template = self.template

        bytes_ = self.bytes_

        hint = self.hint

        image = self.image

        message = self.message

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "number": number,
                "state": state,
                "tags": tags,
                "template": template,
            }
        )
        if bytes_ is not UNSET:
            field_dict["bytes"] = bytes_
        if hint is not UNSET:
            field_dict["hint"] = hint
        if image is not UNSET:
            field_dict["image"] = image
        if message is not UNSET:
            field_dict["message"] = message

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        number = d.pop("number")

        state = check_template_version_state(d.pop("state"))

        tags = cast(list[str], d.pop("tags"))

        template = d.pop("template")

        bytes_ = d.pop("bytes", UNSET)

        hint = d.pop("hint", UNSET)

        image = d.pop("image", UNSET)

        message = d.pop("message", UNSET)

        template_version = cls(
            created_at=created_at,
            number=number,
            state=state,
            tags=tags,
            template=template,
            bytes_=bytes_,
            hint=hint,
            image=image,
            message=message,
        )

        return template_version
