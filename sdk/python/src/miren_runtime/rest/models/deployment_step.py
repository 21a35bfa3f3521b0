from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.deployment_step_state import (
    DeploymentStepState,
    check_deployment_step_state,
)
from ..types import UNSET, Unset

T = TypeVar("T", bound="DeploymentStep")


@_attrs_define
class DeploymentStep:
    name: str
    """ Name. """
    state: DeploymentStepState
    """ State. """
    ended_at: datetime.datetime | Unset = UNSET
    """ Time of its end. """
    message: str | Unset = UNSET
    """ Progress or failure. """
    started_at: datetime.datetime | Unset = UNSET
    """ Time of its begin. """

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        state: str = self.state

        ended_at: str | Unset = UNSET
        if not isinstance(self.ended_at, Unset):
            ended_at = self.ended_at.isoformat()

        message = self.message

        started_at: str | Unset = UNSET
        if not isinstance(self.started_at, Unset):
            started_at = self.started_at.isoformat()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "name": name,
                "state": state,
            }
        )
        if ended_at is not UNSET:
            field_dict["ended_at"] = ended_at
        if message is not UNSET:
            field_dict["message"] = message
        if started_at is not UNSET:
            field_dict["started_at"] = started_at

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        name = d.pop("name")

        state = check_deployment_step_state(d.pop("state"))

        _ended_at = d.pop("ended_at", UNSET)
        ended_at: datetime.datetime | Unset
        if isinstance(_ended_at, Unset):
            ended_at = UNSET
        else:
            ended_at = datetime.datetime.fromisoformat(_ended_at)

        message = d.pop("message", UNSET)

        _started_at = d.pop("started_at", UNSET)
        started_at: datetime.datetime | Unset
        if isinstance(_started_at, Unset):
            started_at = UNSET
        else:
            started_at = datetime.datetime.fromisoformat(_started_at)

        deployment_step = cls(
            name=name,
            state=state,
            ended_at=ended_at,
            message=message,
            started_at=started_at,
        )

        return deployment_step
