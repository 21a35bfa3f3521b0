from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="Stats")


@_attrs_define
class Stats:
    at: datetime.datetime
    """ Time of the reading. """
    cpu_ms: int
    """ Milliseconds of CPU time since its start. """
    memory_bytes: int
    """ Memory. """
    processes: int
    """ Processes. """
    received_bytes: int | Unset = UNSET
    """ Bytes that it received over its network since it was connected; absent: not measured. """
    sent_bytes: int | Unset = UNSET
    """ Bytes that it sent. """

    def to_dict(self) -> dict[str, Any]:
        at = self.at.isoformat()

        cpu_ms = self.cpu_ms

        memory_bytes = self.memory_bytes

        processes = self.processes

        received_bytes = self.received_bytes

        sent_bytes = self.sent_bytes

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "at": at,
                "cpu_ms": cpu_ms,
                "memory_bytes": memory_bytes,
                "processes": processes,
            }
        )
        if received_bytes is not UNSET:
            field_dict["received_bytes"] = received_bytes
        if sent_bytes is not UNSET:
            field_dict["sent_bytes"] = sent_bytes

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        at = datetime.datetime.fromisoformat(d.pop("at"))

        cpu_ms = d.pop("cpu_ms")

        memory_bytes = d.pop("memory_bytes")

        processes = d.pop("processes")

        received_bytes = d.pop("received_bytes", UNSET)

        sent_bytes = d.pop("sent_bytes", UNSET)

        stats = cls(
            at=at,
            cpu_ms=cpu_ms,
            memory_bytes=memory_bytes,
            processes=processes,
            received_bytes=received_bytes,
            sent_bytes=sent_bytes,
        )

        return stats
