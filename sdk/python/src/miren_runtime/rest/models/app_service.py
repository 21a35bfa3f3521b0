from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="AppService")


@_attrs_define
class AppService:
    name: str
    """ Name. """
    ready: int
    """ Sandboxes that are ready. """
    version: int
    """ Number of the version. """
    wanted: int
    """ Sandboxes that it should have. """
    message: str | Unset = UNSET
    """ Problem. """
    state: str | Unset = UNSET
    """ State of its sandboxes as a whole. """

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        ready = self.ready

        version = self.version

        wanted = self.wanted

        message = self.message

        state = self.state

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "name": name,
                "ready": ready,
                "version": version,
                "wanted": wanted,
            }
        )
        if message is not UNSET:
            field_dict["message"] = message
        if state is not UNSET:
            field_dict["state"] = state

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        name = d.pop("name")

        ready = d.pop("ready")

        version = d.pop("version")

        wanted = d.pop("wanted")

        message = d.pop("message", UNSET)

        state = d.pop("state", UNSET)

        app_service = cls(
            name=name,
            ready=ready,
            version=version,
            wanted=wanted,
            message=message,
            state=state,
        )

        return app_service
