from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.key_limits import KeyLimits


T = TypeVar("T", bound="NewKey")


@_attrs_define
class NewKey:
    created_at: datetime.datetime
    """ Time of its creation. """
    key: str
    """ What its user sends. It is shown this once. """
    limits: KeyLimits
    name: str
    """ Name. """
    roles: list[str]
    """ Roles in the project: agent, viewer, deployer, admin. """
    created_by: str | Unset = UNSET
    """ Identity that made it. """
    expires_at: datetime.datetime | Unset = UNSET
    """ Time of its expiry; absent: it does not expire. """
    last_used: datetime.datetime | Unset = UNSET
    """ Time of its last use, up to a minute late; absent: it was never used. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        key = self.key

        limits = self.limits.to_dict()

        name = self.name

        roles = self.roles

        created_by = self.created_by

        expires_at: str | Unset = UNSET
        if not isinstance(self.expires_at, Unset):
            expires_at = self.expires_at.isoformat()

        last_used: str | Unset = UNSET
        if not isinstance(self.last_used, Unset):
            last_used = self.last_used.isoformat()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "key": key,
                "limits": limits,
                "name": name,
                "roles": roles,
            }
        )
        if created_by is not UNSET:
            field_dict["created_by"] = created_by
        if expires_at is not UNSET:
            field_dict["expires_at"] = expires_at
        if last_used is not UNSET:
            field_dict["last_used"] = last_used

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.key_limits import KeyLimits  # noqa: PLC0415

        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        key = d.pop("key")

        limits = KeyLimits.from_dict(d.pop("limits"))

        name = d.pop("name")

        roles = cast(list[str], d.pop("roles"))

        created_by = d.pop("created_by", UNSET)

        _expires_at = d.pop("expires_at", UNSET)
        expires_at: datetime.datetime | Unset
        if isinstance(_expires_at, Unset):
            expires_at = UNSET
        else:
            expires_at = datetime.datetime.fromisoformat(_expires_at)

        _last_used = d.pop("last_used", UNSET)
        last_used: datetime.datetime | Unset
        if isinstance(_last_used, Unset):
            last_used = UNSET
        else:
            last_used = datetime.datetime.fromisoformat(_last_used)

        new_key = cls(
            created_at=created_at,
            key=key,
            limits=limits,
            name=name,
            roles=roles,
            created_by=created_by,
            expires_at=expires_at,
            last_used=last_used,
        )

        return new_key
