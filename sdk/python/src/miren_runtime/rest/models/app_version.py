from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="AppVersion")


@_attrs_define
class AppVersion:
    created_at: datetime.datetime
    """ Time of its creation. """
    id: str
    """ Id. """
    image: str
    """ Image with its digest. """
    number: int
    """ Counts up within the app. """
    branch: str | Unset = UNSET
    """ Branch of its source. """
    commit: str | Unset = UNSET
    """ Commit of its source. """
    served_at: datetime.datetime | Unset = UNSET
    """ Time at which it got all traffic; absent: it never did. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        id = self.id

        image = self.image

        number = self.number

        branch = self.branch

        commit = self.commit

        served_at: str | Unset = UNSET
        if not isinstance(self.served_at, Unset):
            served_at = self.served_at.isoformat()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "id": id,
                "image": image,
                "number": number,
            }
        )
        if branch is not UNSET:
            field_dict["branch"] = branch
        if commit is not UNSET:
            field_dict["commit"] = commit
        if served_at is not UNSET:
            field_dict["served_at"] = served_at

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        id = d.pop("id")

        image = d.pop("image")

        number = d.pop("number")

        branch = d.pop("branch", UNSET)

        commit = d.pop("commit", UNSET)

        _served_at = d.pop("served_at", UNSET)
        served_at: datetime.datetime | Unset
        if isinstance(_served_at, Unset):
            served_at = UNSET
        else:
            served_at = datetime.datetime.fromisoformat(_served_at)

        app_version = cls(
            created_at=created_at,
            id=id,
            image=image,
            number=number,
            branch=branch,
            commit=commit,
            served_at=served_at,
        )

        return app_version
