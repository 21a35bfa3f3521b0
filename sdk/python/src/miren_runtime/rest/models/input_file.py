from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="InputFile")


@_attrs_define
class InputFile:
    data: str
    """ Content, in base64. """
    path: str
    """ Path; a relative one is below the working directory. """
    executable: bool | Unset = UNSET
    """ May be executed. """

    def to_dict(self) -> dict[str, Any]:
        data = self.data

        path = self.path

        executable = self.executable

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "data": data,
                "path": path,
            }
        )
        if executable is not UNSET:
            field_dict["executable"] = executable

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        data = d.pop("data")

        path = d.pop("path")

        executable = d.pop("executable", UNSET)

        input_file = cls(
            data=data,
            path=path,
            executable=executable,
        )

        return input_file
