from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="CreateWebhookInputBody")


@_attrs_define
class CreateWebhookInputBody:
    name: str
    """ Name. """
    url: str
    """ URL of the receiver, http or https. """
    events: list[str] | Unset = UNSET
    """ Patterns of events: sandbox.ended, sandbox.*, or *; absent: all. """

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        url = self.url

        events: list[str] | Unset = UNSET
        if not isinstance(self.events, Unset):
            events = self.events

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "name": name,
                "url": url,
            }
        )
        if events is not UNSET:
            field_dict["events"] = events

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        name = d.pop("name")

        url = d.pop("url")

        events = cast(list[str], d.pop("events", UNSET))

        create_webhook_input_body = cls(
            name=name,
            url=url,
            events=events,
        )

        return create_webhook_input_body
