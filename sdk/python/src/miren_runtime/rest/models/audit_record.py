from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.audit_record_detail import AuditRecordDetail


T = TypeVar("T", bound="AuditRecord")


@_attrs_define
class AuditRecord:
    action: str
    """ The call. """
    id: str
    """ Id. """
    outcome: str
    """ ok, started, or the class of the error. """
    time: datetime.datetime
    """ Time of the record. """
    actor: str | Unset = UNSET
    """ Who made the call. """
    detail: AuditRecordDetail | Unset = UNSET
    """ More, such as the address of the caller. """
    request_id: str | Unset = UNSET
    """ Id of the call. """
    subject: str | Unset = UNSET
    """ Id of what it was about, or the name that the call gave. """
    subject_kind: str | Unset = UNSET
    """ Kind of what it was about. """

    def to_dict(self) -> dict[str, Any]:
        action = self.action

        id = self.id

        outcome = self.outcome

        time = self.time.isoformat()

        actor = self.actor

        detail: dict[str, Any] | Unset = UNSET
        if not isinstance(self.detail, Unset):
            detail = self.detail.to_dict()

        request_id = self.request_id

        subject = self.subject

        subject_kind = self.subject_kind

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "action": action,
                "id": id,
                "outcome": outcome,
                "time": time,
            }
        )
        if actor is not UNSET:
            field_dict["actor"] = actor
        if detail is not UNSET:
            field_dict["detail"] = detail
        if request_id is not UNSET:
            field_dict["request_id"] = request_id
        if subject is not UNSET:
            field_dict["subject"] = subject
        if subject_kind is not UNSET:
            field_dict["subject_kind"] = subject_kind

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.audit_record_detail import AuditRecordDetail  # noqa: PLC0415

        d = dict(src_dict)
        action = d.pop("action")

        id = d.pop("id")

        outcome = d.pop("outcome")

        time = datetime.datetime.fromisoformat(d.pop("time"))

        actor = d.pop("actor", UNSET)

        _detail = d.pop("detail", UNSET)
        detail: AuditRecordDetail | Unset
        if isinstance(_detail, Unset):
            detail = UNSET
        else:
            detail = AuditRecordDetail.from_dict(_detail)

        request_id = d.pop("request_id", UNSET)

        subject = d.pop("subject", UNSET)

        subject_kind = d.pop("subject_kind", UNSET)

        audit_record = cls(
            action=action,
            id=id,
            outcome=outcome,
            time=time,
            actor=actor,
            detail=detail,
            request_id=request_id,
            subject=subject,
            subject_kind=subject_kind,
        )

        return audit_record
