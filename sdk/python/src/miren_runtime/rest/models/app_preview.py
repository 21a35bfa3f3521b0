from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="AppPreview")


@_attrs_define
class AppPreview:
    app: str
    """ Name of the app. """
    host: str
    """ Its host. """
    name: str
    """ Name. """
    expires_at: datetime.datetime | Unset = UNSET
    """ Time at which it ends. """
    url: str | Unset = UNSET
    """ Its URL; absent: its deployment is not kept any more. """
    version: int | Unset = UNSET
    """ Number of its version. """

    def to_dict(self) -> dict[str, Any]:
        app = self.app

        host = self.host

        name = self.name

        expires_at: str | Unset = UNSET
        if not isinstance(self.expires_at, Unset):
            expires_at = self.expires_at.isoformat()

        url = self.url

        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "app": app,
                "host": host,
                "name": name,
            }
        )
        if expires_at is not UNSET:
            field_dict["expires_at"] = expires_at
        if url is not UNSET:
            field_dict["url"] = url
        if version is not UNSET:
            field_dict["version"] = version

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        app = d.pop("app")

        host = d.pop("host")

        name = d.pop("name")

        _expires_at = d.pop("expires_at", UNSET)
        expires_at: datetime.datetime | Unset
        if isinstance(_expires_at, Unset):
            expires_at = UNSET
        else:
            expires_at = datetime.datetime.fromisoformat(_expires_at)

        url = d.pop("url", UNSET)

        version = d.pop("version", UNSET)

        app_preview = cls(
            app=app,
            host=host,
            name=name,
            expires_at=expires_at,
            url=url,
            version=version,
        )

        return app_preview
