from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="CreateAddonBackupInputBody")


@_attrs_define
class CreateAddonBackupInputBody:
    name: str | Unset = UNSET
    """ Name among the backups of the addon; absent: the time. """

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if name is not UNSET:
            field_dict["name"] = name

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        name = d.pop("name", UNSET)

        create_addon_backup_input_body = cls(
            name=name,
        )

        return create_addon_backup_input_body
