from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.log_line_stream import LogLineStream, check_log_line_stream
from ..types import UNSET, Unset

T = TypeVar("T", bound="LogLine")


@_attrs_define
class LogLine:
    at: datetime.datetime
    """ Time of the line. """
    stream: LogLineStream
    """ Where it was printed. """
    text: str
    """ The line. Bytes that are not UTF-8 are replaced. """
    missed_bytes: int | Unset = UNSET
    """ So much of the log right before the line is gone: a log keeps its end. """

    def to_dict(self) -> dict[str, Any]:
        at = self.at.isoformat()

        stream: str = self.stream

        text = self.text

        missed_bytes = self.missed_bytes

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "at": at,
                "stream": stream,
                "text": text,
            }
        )
        if missed_bytes is not UNSET:
            field_dict["missed_bytes"] = missed_bytes

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        at = datetime.datetime.fromisoformat(d.pop("at"))

        stream = check_log_line_stream(d.pop("stream"))

        text = d.pop("text")

        missed_bytes = d.pop("missed_bytes", UNSET)

        log_line = cls(
            at=at,
            stream=stream,
            text=text,
            missed_bytes=missed_bytes,
        )

        return log_line
