from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="TrafficShare")


@_attrs_define
class TrafficShare:
    version: int
    """ Number of the version. """
    weight: int
    """ Its share of the requests to the app's hosts, in percent; 0 for a preview. """
    expires_at: datetime.datetime | Unset = UNSET
    """ Time at which the preview ends. """
    host: str | Unset = UNSET
    """ Host of the preview. """
    preview: str | Unset = UNSET
    """ Name of the preview that it is; absent: it gets requests to the app's hosts. """

    def to_dict(self) -> dict[str, Any]:
        version = self.version

        weight = self.weight

        expires_at: str | Unset = UNSET
        if not isinstance(self.expires_at, Unset):
            expires_at = self.expires_at.isoformat()

        host = self.host

        preview = self.preview

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "version": version,
                "weight": weight,
            }
        )
        if expires_at is not UNSET:
            field_dict["expires_at"] = expires_at
        if host is not UNSET:
            field_dict["host"] = host
        if preview is not UNSET:
            field_dict["preview"] = preview

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        version = d.pop("version")

        weight = d.pop("weight")

        _expires_at = d.pop("expires_at", UNSET)
        expires_at: datetime.datetime | Unset
        if isinstance(_expires_at, Unset):
            expires_at = UNSET
        else:
            expires_at = datetime.datetime.fromisoformat(_expires_at)

        host = d.pop("host", UNSET)

        preview = d.pop("preview", UNSET)

        traffic_share = cls(
            version=version,
            weight=weight,
            expires_at=expires_at,
            host=host,
            preview=preview,
        )

        return traffic_share
