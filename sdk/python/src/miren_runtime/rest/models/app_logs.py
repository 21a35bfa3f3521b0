from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.app_log_line import AppLogLine


T = TypeVar("T", bound="AppLogs")


@_attrs_define
class AppLogs:
    lines: list[AppLogLine]
    """ The last lines that match, ordered by time. """
    more: bool
    """ Earlier lines match too, or the server stopped at 16 MiB of text: search again with until set to the time of
    the first one. """

    def to_dict(self) -> dict[str, Any]:
        lines = []
        for lines_item_data in self.lines:
            lines_item = lines_item_data.to_dict()
            lines.append(lines_item)

        more = self.more

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "lines": lines,
                "more": more,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.app_log_line import AppLogLine  # noqa: PLC0415

        d = dict(src_dict)
        lines = []
        _lines = d.pop("lines")
        for lines_item_data in _lines:
            lines_item = AppLogLine.from_dict(lines_item_data)

            lines.append(lines_item)

        more = d.pop("more")

        app_logs = cls(
            lines=lines,
            more=more,
        )

        return app_logs
