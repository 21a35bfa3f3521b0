from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..models.step_kind import StepKind, check_step_kind

T = TypeVar("T", bound="Step")


@_attrs_define
class Step:
    args: list[str]
    """ run: a command, and the user if it is another. copy: a path of files, its path in the image, and if need be
    owner and mode. env: names and values in turn. Others: one. """
    kind: StepKind
    """ from and from_template come first; without either it begins from template base. """

    def to_dict(self) -> dict[str, Any]:
        args = self.args

        kind: str = self.kind

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "args": args,
                "kind": kind,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        args = cast(list[str], d.pop("args"))

        kind = check_step_kind(d.pop("kind"))

        step = cls(
            args=args,
            kind=kind,
        )

        return step
