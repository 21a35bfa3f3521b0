from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.log_line import LogLine


T = TypeVar("T", bound="LogPage")


@_attrs_define
class LogPage:
    lines: list[LogLine]
    """ Lines, the oldest first. """
    more: bool
    """ There are more lines already. """
    next_: int
    """ Position after the last line: after of the next request. """

    def to_dict(self) -> dict[str, Any]:
        lines = []
        for lines_item_data in self.lines:
            lines_item = lines_item_data.to_dict()
            lines.append(lines_item)

        more = self.more

        next_ = self.next_

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "lines": lines,
                "more": more,
                "next": next_,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.log_line import LogLine  # noqa: PLC0415

        d = dict(src_dict)
        lines = []
        _lines = d.pop("lines")
        for lines_item_data in _lines:
            lines_item = LogLine.from_dict(lines_item_data)

            lines.append(lines_item)

        more = d.pop("more")

        next_ = d.pop("next")

        log_page = cls(
            lines=lines,
            more=more,
            next_=next_,
        )

        return log_page
