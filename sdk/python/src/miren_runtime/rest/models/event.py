from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.event_data import EventData


T = TypeVar("T", bound="Event")


@_attrs_define
class Event:
    data: EventData
    """ What it happened to: kind, id, phase and more. """
    id: str
    """ Id, which receivers of webhooks get as webhook-id. """
    timestamp: datetime.datetime
    """ Time at which it happened. """
    type_: str
    """ Type. """

    def to_dict(self) -> dict[str, Any]:
        data = self.data.to_dict()

        id = self.id

        timestamp = self.timestamp.isoformat()

        type_ = self.type_

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "data": data,
                "id": id,
                "timestamp": timestamp,
                "type": type_,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.event_data import EventData  # noqa: PLC0415

        d = dict(src_dict)
        data = EventData.from_dict(d.pop("data"))

        id = d.pop("id")

        timestamp = datetime.datetime.fromisoformat(d.pop("timestamp"))

        type_ = d.pop("type")

        event = cls(
            data=data,
            id=id,
            timestamp=timestamp,
            type_=type_,
        )

        return event
