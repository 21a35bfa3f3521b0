from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="RollbackInputBody")


@_attrs_define
class RollbackInputBody:
    version: str | Unset = UNSET
    """ Number or tag of the version; absent: the newest ready one before that which the name selects. """

    def to_dict(self) -> dict[str, Any]:
        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if version is not UNSET:
            field_dict["version"] = version

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        version = d.pop("version", UNSET)

        rollback_input_body = cls(
            version=version,
        )

        return rollback_input_body
