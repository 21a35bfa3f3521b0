from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.build_log_state import BuildLogState, check_build_log_state

if TYPE_CHECKING:
    from ..models.build_line import BuildLine


T = TypeVar("T", bound="BuildLog")


@_attrs_define
class BuildLog:
    lines: list[BuildLine]
    """ Lines, the oldest first. """
    more: bool
    """ There are more lines already. """
    next_: int
    """ Position after the last line: after of the next request. """
    state: BuildLogState
    """ State of the build when the log was read. """
    template: str
    """ Name of the template. """
    version: int
    """ Number of the version. """

    def to_dict(self) -> dict[str, Any]:
        lines = []
        for lines_item_data in self.lines:
            lines_item = lines_item_data.to_dict()
            lines.append(lines_item)

        more = self.more

        next_ = self.next_

        state: str = self.state

        template = self.template

        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "lines": lines,
                "more": more,
                "next": next_,
                "state": state,
                "template": template,
                "version": version,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.build_line import BuildLine  # noqa: PLC0415

        d = dict(src_dict)
        lines = []
        _lines = d.pop("lines")
        for lines_item_data in _lines:
            lines_item = BuildLine.from_dict(lines_item_data)

            lines.append(lines_item)

        more = d.pop("more")

        next_ = d.pop("next")

        state = check_build_log_state(d.pop("state"))

        template = d.pop("template")

        version = d.pop("version")

        build_log = cls(
            lines=lines,
            more=more,
            next_=next_,
            state=state,
            template=template,
            version=version,
        )

        return build_log
