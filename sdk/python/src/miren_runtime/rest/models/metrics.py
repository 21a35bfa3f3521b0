from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="Metrics")


@_attrs_define
class Metrics:
    queue_ms: int
    """ Milliseconds in the queue. """
    setup_ms: int
    """ Milliseconds for the sandbox and the files. """
    wall_ms: int
    """ Milliseconds from the start of the program to its end. """
    cpu_ms: int | Unset = UNSET
    """ Milliseconds of CPU time of the sandbox meanwhile. """
    memory_bytes: int | Unset = UNSET
    """ Most memory that the sandbox was seen to use meanwhile. """

    def to_dict(self) -> dict[str, Any]:
        queue_ms = self.queue_ms

        setup_ms = self.setup_ms

        wall_ms = self.wall_ms

        cpu_ms = self.cpu_ms

        memory_bytes = self.memory_bytes

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "queue_ms": queue_ms,
                "setup_ms": setup_ms,
                "wall_ms": wall_ms,
            }
        )
        if cpu_ms is not UNSET:
            field_dict["cpu_ms"] = cpu_ms
        if memory_bytes is not UNSET:
            field_dict["memory_bytes"] = memory_bytes

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        queue_ms = d.pop("queue_ms")

        setup_ms = d.pop("setup_ms")

        wall_ms = d.pop("wall_ms")

        cpu_ms = d.pop("cpu_ms", UNSET)

        memory_bytes = d.pop("memory_bytes", UNSET)

        metrics = cls(
            queue_ms=queue_ms,
            setup_ms=setup_ms,
            wall_ms=wall_ms,
            cpu_ms=cpu_ms,
            memory_bytes=memory_bytes,
        )

        return metrics
