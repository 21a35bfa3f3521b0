from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.app_log_line_stream import AppLogLineStream, check_app_log_line_stream
from ..types import UNSET, Unset

T = TypeVar("T", bound="AppLogLine")


@_attrs_define
class AppLogLine:
    at: datetime.datetime
    """ Time of the line. """
    stream: AppLogLineStream
    """ Where it was printed. """
    text: str
    """ The line. Bytes that are not UTF-8 are replaced. """
    container: str | Unset = UNSET
    """ Id of its sandbox. """
    level: str | Unset = UNSET
    """ Level that the line says: trace, debug, info, warn, error, fatal. """
    missed_bytes: int | Unset = UNSET
    """ So much of the log right before the line is gone: a log keeps its end. """
    service: str | Unset = UNSET
    """ Service of the app. """
    version: int | Unset = UNSET
    """ Number of the app's version. """

    def to_dict(self) -> dict[str, Any]:
        at = self.at.isoformat()

        stream: str = self.stream

        text = self.text

        container = self.container

        level = self.level

        missed_bytes = self.missed_bytes

        service = self.service

        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "at": at,
                "stream": stream,
                "text": text,
            }
        )
        if container is not UNSET:
            field_dict["container"] = container
        if level is not UNSET:
            field_dict["level"] = level
        if missed_bytes is not UNSET:
            field_dict["missed_bytes"] = missed_bytes
        if service is not UNSET:
            field_dict["service"] = service
        if version is not UNSET:
            field_dict["version"] = version

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        at = datetime.datetime.fromisoformat(d.pop("at"))

        stream = check_app_log_line_stream(d.pop("stream"))

        text = d.pop("text")

        container = d.pop("container", UNSET)

        level = d.pop("level", UNSET)

        missed_bytes = d.pop("missed_bytes", UNSET)

        service = d.pop("service", UNSET)

        version = d.pop("version", UNSET)

        app_log_line = cls(
            at=at,
            stream=stream,
            text=text,
            container=container,
            level=level,
            missed_bytes=missed_bytes,
            service=service,
            version=version,
        )

        return app_log_line
