from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="Pool")


@_attrs_define
class Pool:
    created_at: datetime.datetime
    """ Time of its creation. """
    idle_seconds: int
    """ Time without a session from it after which only min are kept. """
    max_: int
    """ Most warm sandboxes; 0: none is kept. """
    min_: int
    """ Warm sandboxes that are always kept. """
    starting: int
    """ Sandboxes that are being made. """
    target: int
    """ Warm sandboxes that are wanted now. """
    template: str
    """ Name of the template. """
    warm: int
    """ Sandboxes that wait. """
    message: str | Unset = UNSET
    """ Reason why it has fewer than wanted. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        idle_seconds = self.idle_seconds

        max_ = self.max_

        min_ = self.min_

        starting = self.starting

        target = self.target

        template = self.template

        warm = self.warm

        message = self.message

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "idle_seconds": idle_seconds,
                "max": max_,
                "min": min_,
                "starting": starting,
                "target": target,
                "template": template,
                "warm": warm,
            }
        )
        if message is not UNSET:
            field_dict["message"] = message

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        idle_seconds = d.pop("idle_seconds")

        max_ = d.pop("max")

        min_ = d.pop("min")

        starting = d.pop("starting")

        target = d.pop("target")

        template = d.pop("template")

        warm = d.pop("warm")

        message = d.pop("message", UNSET)

        pool = cls(
            created_at=created_at,
            idle_seconds=idle_seconds,
            max_=max_,
            min_=min_,
            starting=starting,
            target=target,
            template=template,
            warm=warm,
            message=message,
        )

        return pool
