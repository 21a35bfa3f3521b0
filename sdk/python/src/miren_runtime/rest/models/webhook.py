from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="Webhook")


@_attrs_define
class Webhook:
    created_at: datetime.datetime
    """ Time of its creation. """
    disabled: bool
    """ It gets no events. """
    events: list[str]
    """ Patterns of the events that it gets. """
    failures: int
    """ Attempts that failed in a row. """
    name: str
    """ Name. """
    url: str
    """ URL of the receiver. """
    last_attempt: datetime.datetime | Unset = UNSET
    """ Time of that attempt. """
    last_delivered: datetime.datetime | Unset = UNSET
    """ Time at which the receiver last accepted a delivery. """
    last_outcome: str | Unset = UNSET
    """ Outcome of the last attempt of a delivery. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        disabled = self.disabled

        events = self.events

        failures = self.failures

        name = self.name

        url = self.url

        last_attempt: str | Unset = UNSET
        if not isinstance(self.last_attempt, Unset):
            last_attempt = self.last_attempt.isoformat()

        last_delivered: str | Unset = UNSET
        if not isinstance(self.last_delivered, Unset):
            last_delivered = self.last_delivered.isoformat()

        last_outcome = self.last_outcome

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "disabled": disabled,
                "events": events,
                "failures": failures,
                "name": name,
                "url": url,
            }
        )
        if last_attempt is not UNSET:
            field_dict["last_attempt"] = last_attempt
        if last_delivered is not UNSET:
            field_dict["last_delivered"] = last_delivered
        if last_outcome is not UNSET:
            field_dict["last_outcome"] = last_outcome

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        disabled = d.pop("disabled")

        events = cast(list[str], d.pop("events"))

        failures = d.pop("failures")

        name = d.pop("name")

        url = d.pop("url")

        _last_attempt = d.pop("last_attempt", UNSET)
        last_attempt: datetime.datetime | Unset
        if isinstance(_last_attempt, Unset):
            last_attempt = UNSET
        else:
            last_attempt = datetime.datetime.fromisoformat(_last_attempt)

        _last_delivered = d.pop("last_delivered", UNSET)
        last_delivered: datetime.datetime | Unset
        if isinstance(_last_delivered, Unset):
            last_delivered = UNSET
        else:
            last_delivered = datetime.datetime.fromisoformat(_last_delivered)

        last_outcome = d.pop("last_outcome", UNSET)

        webhook = cls(
            created_at=created_at,
            disabled=disabled,
            events=events,
            failures=failures,
            name=name,
            url=url,
            last_attempt=last_attempt,
            last_delivered=last_delivered,
            last_outcome=last_outcome,
        )

        return webhook
