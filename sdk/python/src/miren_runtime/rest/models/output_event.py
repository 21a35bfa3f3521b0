from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.output_event_stream import OutputEventStream, check_output_event_stream
from ..types import UNSET, Unset

T = TypeVar("T", bound="OutputEvent")


@_attrs_define
class OutputEvent:
    data: str
    """ Output, as text or in base64. """
    offset: int
    """ Position of its first byte in the output; it jumps where output was not kept. """
    stream: OutputEventStream
    """ Which output. """
    attempt: int | Unset = UNSET
    """ Attempt of the execution. """

    def to_dict(self) -> dict[str, Any]:
        data = self.data

        offset = self.offset

        stream: str = self.stream

        attempt = self.attempt

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "data": data,
                "offset": offset,
                "stream": stream,
            }
        )
        if attempt is not UNSET:
            field_dict["attempt"] = attempt

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        data = d.pop("data")

        offset = d.pop("offset")

        stream = check_output_event_stream(d.pop("stream"))

        attempt = d.pop("attempt", UNSET)

        output_event = cls(
            data=data,
            offset=offset,
            stream=stream,
            attempt=attempt,
        )

        return output_event
