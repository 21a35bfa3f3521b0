from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="UpdateWebhookInputBody")


@_attrs_define
class UpdateWebhookInputBody:
    disabled: bool | Unset = UNSET
    """ Whether it gets no events; absent: as it is. """
    events: list[str] | Unset = UNSET
    """ Patterns of events; absent: as they are. """
    url: str | Unset = UNSET
    """ URL of the receiver; absent: as it is. """

    def to_dict(self) -> dict[str, Any]:
        disabled = self.disabled

        events: list[str] | Unset = UNSET
        if not isinstance(self.events, Unset):
            events = self.events

        url = self.url

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if disabled is not UNSET:
            field_dict["disabled"] = disabled
        if events is not UNSET:
            field_dict["events"] = events
        if url is not UNSET:
            field_dict["url"] = url

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        disabled = d.pop("disabled", UNSET)

        events = cast(list[str], d.pop("events", UNSET))

        url = d.pop("url", UNSET)

        update_webhook_input_body = cls(
            disabled=disabled,
            events=events,
            url=url,
        )

        return update_webhook_input_body
