from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="VolumeSchedule")


@_attrs_define
class VolumeSchedule:
    cron: str | Unset = UNSET
    """ Times of snapshots as cron writes them, instead of every_seconds. """
    every_seconds: int | Unset = UNSET
    """ Time between snapshots. """
    keep: int | Unset = UNSET
    """ Snapshots that are kept. Absent: as before, or with keep_for_seconds 1000. """
    keep_for_seconds: int | Unset = UNSET
    """ Age from which snapshots are deleted, except the newest. Absent: as before, or with keep any. """
    time_zone: str | Unset = UNSET
    """ Time zone of cron; absent: UTC. """

    def to_dict(self) -> dict[str, Any]:
        cron = self.cron

        every_seconds = self.every_seconds

        keep = self.keep

        keep_for_seconds = self.keep_for_seconds

        time_zone = self.time_zone

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if cron is not UNSET:
            field_dict["cron"] = cron
        if every_seconds is not UNSET:
            field_dict["every_seconds"] = every_seconds
        if keep is not UNSET:
            field_dict["keep"] = keep
        if keep_for_seconds is not UNSET:
            field_dict["keep_for_seconds"] = keep_for_seconds
        if time_zone is not UNSET:
            field_dict["time_zone"] = time_zone

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        cron = d.pop("cron", UNSET)

        every_seconds = d.pop("every_seconds", UNSET)

        keep = d.pop("keep", UNSET)

        keep_for_seconds = d.pop("keep_for_seconds", UNSET)

        time_zone = d.pop("time_zone", UNSET)

        volume_schedule = cls(
            cron=cron,
            every_seconds=every_seconds,
            keep=keep,
            keep_for_seconds=keep_for_seconds,
            time_zone=time_zone,
        )

        return volume_schedule
