from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

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

    def to_dict(self) -> dict[str, Any]:
        at = self.at.isoformat()

        cpu_ms = self.cpu_ms

        memory_bytes = self.memory_bytes

        processes = self.processes

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "at": at,
                "cpu_ms": cpu_ms,
                "memory_bytes": memory_bytes,
                "processes": processes,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        at = datetime.datetime.fromisoformat(d.pop("at"))

        cpu_ms = d.pop("cpu_ms")

        memory_bytes = d.pop("memory_bytes")

        processes = d.pop("processes")

        stats = cls(
            at=at,
            cpu_ms=cpu_ms,
            memory_bytes=memory_bytes,
            processes=processes,
        )

        return stats
