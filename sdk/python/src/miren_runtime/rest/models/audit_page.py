from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.audit_record import AuditRecord


T = TypeVar("T", bound="AuditPage")


@_attrs_define
class AuditPage:
    records: list[AuditRecord]
    """ Records, newest first. """
    next_cursor: str | Unset = UNSET
    """ For the next page; absent on the last. """

    def to_dict(self) -> dict[str, Any]:
        records = []
        for records_item_data in self.records:
            records_item = records_item_data.to_dict()
            records.append(records_item)

        next_cursor = self.next_cursor

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "records": records,
            }
        )
        if next_cursor is not UNSET:
            field_dict["next_cursor"] = next_cursor

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.audit_record import AuditRecord  # noqa: PLC0415

        d = dict(src_dict)
        records = []
        _records = d.pop("records")
        for records_item_data in _records:
            records_item = AuditRecord.from_dict(records_item_data)

            records.append(records_item)

        next_cursor = d.pop("next_cursor", UNSET)

        audit_page = cls(
            records=records,
            next_cursor=next_cursor,
        )

        return audit_page
