from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="AddonUse")


@_attrs_define
class AddonUse:
    app: str
    """ Name of the app. """
    current: bool
    """ Each sandbox of the app has the present credential. """
    message: str | Unset = UNSET
    """ What it waits for. """
    prefix: str | Unset = UNSET
    """ Prefix of the names of the variables. """

    def to_dict(self) -> dict[str, Any]:
        app = self.app

        current = self.current

        message = self.message

        prefix = self.prefix

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "app": app,
                "current": current,
            }
        )
        if message is not UNSET:
            field_dict["message"] = message
        if prefix is not UNSET:
            field_dict["prefix"] = prefix

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        app = d.pop("app")

        current = d.pop("current")

        message = d.pop("message", UNSET)

        prefix = d.pop("prefix", UNSET)

        addon_use = cls(
            app=app,
            current=current,
            message=message,
            prefix=prefix,
        )

        return addon_use
