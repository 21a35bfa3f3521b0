from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="BuildLine")


@_attrs_define
class BuildLine:
    at: datetime.datetime
    """ Time. """
    kind: str
    """ started, progress, log, cached, done, failed, canceled, warning. """
    name: str | Unset = UNSET
    """ Name of the step. """
    step: int | Unset = UNSET
    """ Number of its step; absent for what belongs to none. """
    text: str | Unset = UNSET
    """ A line of output, or why it failed. """

    def to_dict(self) -> dict[str, Any]:
        at = self.at.isoformat()

        kind = self.kind

        name = self.name

        step = self.step

        text = self.text

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "at": at,
                "kind": kind,
            }
        )
        if name is not UNSET:
            field_dict["name"] = name
        if step is not UNSET:
            field_dict["step"] = step
        if text is not UNSET:
            field_dict["text"] = text

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        at = datetime.datetime.fromisoformat(d.pop("at"))

        kind = d.pop("kind")

        name = d.pop("name", UNSET)

        step = d.pop("step", UNSET)

        text = d.pop("text", UNSET)

        build_line = cls(
            at=at,
            kind=kind,
            name=name,
            step=step,
            text=text,
        )

        return build_line
