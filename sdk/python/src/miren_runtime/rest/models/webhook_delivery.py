from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.webhook_delivery_phase import (
    WebhookDeliveryPhase,
    check_webhook_delivery_phase,
)
from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.webhook_delivery_payload import WebhookDeliveryPayload


T = TypeVar("T", bound="WebhookDelivery")


@_attrs_define
class WebhookDelivery:
    attempts: int
    """ Attempts since it was made or replayed. """
    event: str
    """ Id of the event, which the receiver gets as webhook-id. """
    id: str
    """ Id of the delivery. """
    occurred_at: datetime.datetime
    """ Time of the event. """
    payload: WebhookDeliveryPayload
    """ Body of the request. """
    phase: WebhookDeliveryPhase
    """ pending: another attempt follows; delivered: it was accepted; dead: it was given up. """
    type_: str
    """ Type of the event. """
    ended_at: datetime.datetime | Unset = UNSET
    """ Time at which it was accepted or given up. """
    http_status: int | Unset = UNSET
    """ Status of the last answer; absent: there was none. """
    message: str | Unset = UNSET
    """ Reason of the last failure. """
    next_attempt: datetime.datetime | Unset = UNSET
    """ Time of the next attempt. """

    def to_dict(self) -> dict[str, Any]:
        attempts = self.attempts

        event = self.event

        id = self.id

        occurred_at = self.occurred_at.isoformat()

        payload = self.payload.to_dict()

        phase: str = self.phase

        type_ = self.type_

        ended_at: str | Unset = UNSET
        if not isinstance(self.ended_at, Unset):
            ended_at = self.ended_at.isoformat()

        http_status = self.http_status

        message = self.message

        next_attempt: str | Unset = UNSET
        if not isinstance(self.next_attempt, Unset):
            next_attempt = self.next_attempt.isoformat()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "attempts": attempts,
                "event": event,
                "id": id,
                "occurred_at": occurred_at,
                "payload": payload,
                "phase": phase,
                "type": type_,
            }
        )
        if ended_at is not UNSET:
            field_dict["ended_at"] = ended_at
        if http_status is not UNSET:
            field_dict["http_status"] = http_status
        if message is not UNSET:
            field_dict["message"] = message
        if next_attempt is not UNSET:
            field_dict["next_attempt"] = next_attempt

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.webhook_delivery_payload import WebhookDeliveryPayload  # noqa: PLC0415

        d = dict(src_dict)
        attempts = d.pop("attempts")

        event = d.pop("event")

        id = d.pop("id")

        occurred_at = datetime.datetime.fromisoformat(d.pop("occurred_at"))

        payload = WebhookDeliveryPayload.from_dict(d.pop("payload"))

        phase = check_webhook_delivery_phase(d.pop("phase"))

        type_ = d.pop("type")

        _ended_at = d.pop("ended_at", UNSET)
        ended_at: datetime.datetime | Unset
        if isinstance(_ended_at, Unset):
            ended_at = UNSET
        else:
            ended_at = datetime.datetime.fromisoformat(_ended_at)

        http_status = d.pop("http_status", UNSET)

        message = d.pop("message", UNSET)

        _next_attempt = d.pop("next_attempt", UNSET)
        next_attempt: datetime.datetime | Unset
        if isinstance(_next_attempt, Unset):
            next_attempt = UNSET
        else:
            next_attempt = datetime.datetime.fromisoformat(_next_attempt)

        webhook_delivery = cls(
            attempts=attempts,
            event=event,
            id=id,
            occurred_at=occurred_at,
            payload=payload,
            phase=phase,
            type_=type_,
            ended_at=ended_at,
            http_status=http_status,
            message=message,
            next_attempt=next_attempt,
        )

        return webhook_delivery
