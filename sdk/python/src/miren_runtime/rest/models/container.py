from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.container_purpose import ContainerPurpose, check_container_purpose
from ..models.container_state import ContainerState, check_container_state
from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.container_labels import ContainerLabels


T = TypeVar("T", bound="Container")


@_attrs_define
class Container:
    created_at: datetime.datetime
    """ Time of its creation. """
    id: str
    """ Id; a session has the same. """
    purpose: ContainerPurpose
    """ What it is for; pool: it waits to be claimed. """
    ready: bool
    """ Its probe passes. """
    state: ContainerState
    """ State. """
    address: str | Unset = UNSET
    """ Its address on its node, while it has one. """
    app: str | Unset = UNSET
    """ Id of its app. """
    cpu_millis: int | Unset = UNSET
    """ CPU, in thousandths. """
    ended_at: datetime.datetime | Unset = UNSET
    """ Time of its end. """
    execution: str | Unset = UNSET
    """ Id of its execution. """
    exit_code: int | Unset = UNSET
    """ Exit code of its main process. """
    image: str | Unset = UNSET
    """ Image. """
    labels: ContainerLabels | Unset = UNSET
    """ Labels. """
    memory_bytes: int | Unset = UNSET
    """ Memory. """
    message: str | Unset = UNSET
    """ Problem and advice. """
    name: str | Unset = UNSET
    """ Name. """
    pauses: int | Unset = UNSET
    """ How often it was paused. """
    reason: str | Unset = UNSET
    """ Reason of its end. """
    service: str | Unset = UNSET
    """ Service of the app. """
    started_at: datetime.datetime | Unset = UNSET
    """ Time of its start. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        id = self.id

        purpose: str = self.purpose

        ready = self.ready

        state: str = self.state

        address = self.address

        app = self.app

        cpu_millis = self.cpu_millis

        ended_at: str | Unset = UNSET
        if not isinstance(self.ended_at, Unset):
            ended_at = self.ended_at.isoformat()

        execution = self.execution

        exit_code = self.exit_code

        image = self.image

        labels: dict[str, Any] | Unset = UNSET
        if not isinstance(self.labels, Unset):
            labels = self.labels.to_dict()

        memory_bytes = self.memory_bytes

        message = self.message

        name = self.name

        pauses = self.pauses

        reason = self.reason

        service = self.service

        started_at: str | Unset = UNSET
        if not isinstance(self.started_at, Unset):
            started_at = self.started_at.isoformat()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "id": id,
                "purpose": purpose,
                "ready": ready,
                "state": state,
            }
        )
        if address is not UNSET:
            field_dict["address"] = address
        if app is not UNSET:
            field_dict["app"] = app
        if cpu_millis is not UNSET:
            field_dict["cpu_millis"] = cpu_millis
        if ended_at is not UNSET:
            field_dict["ended_at"] = ended_at
        if execution is not UNSET:
            field_dict["execution"] = execution
        if exit_code is not UNSET:
            field_dict["exit_code"] = exit_code
        if image is not UNSET:
            field_dict["image"] = image
        if labels is not UNSET:
            field_dict["labels"] = labels
        if memory_bytes is not UNSET:
            field_dict["memory_bytes"] = memory_bytes
        if message is not UNSET:
            field_dict["message"] = message
        if name is not UNSET:
            field_dict["name"] = name
        if pauses is not UNSET:
            field_dict["pauses"] = pauses
        if reason is not UNSET:
            field_dict["reason"] = reason
        if service is not UNSET:
            field_dict["service"] = service
        if started_at is not UNSET:
            field_dict["started_at"] = started_at

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.container_labels import ContainerLabels  # noqa: PLC0415

        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        id = d.pop("id")

        purpose = check_container_purpose(d.pop("purpose"))

        ready = d.pop("ready")

        state = check_container_state(d.pop("state"))

        address = d.pop("address", UNSET)

        app = d.pop("app", UNSET)

        cpu_millis = d.pop("cpu_millis", UNSET)

        _ended_at = d.pop("ended_at", UNSET)
        ended_at: datetime.datetime | Unset
        if isinstance(_ended_at, Unset):
            ended_at = UNSET
        else:
            ended_at = datetime.datetime.fromisoformat(_ended_at)

        execution = d.pop("execution", UNSET)

        exit_code = d.pop("exit_code", UNSET)

        image = d.pop("image", UNSET)

        _labels = d.pop("labels", UNSET)
        labels: ContainerLabels | Unset
        if isinstance(_labels, Unset):
            labels = UNSET
        else:
            labels = ContainerLabels.from_dict(_labels)

        memory_bytes = d.pop("memory_bytes", UNSET)

        message = d.pop("message", UNSET)

        name = d.pop("name", UNSET)

        pauses = d.pop("pauses", UNSET)

        reason = d.pop("reason", UNSET)

        service = d.pop("service", UNSET)

        _started_at = d.pop("started_at", UNSET)
        started_at: datetime.datetime | Unset
        if isinstance(_started_at, Unset):
            started_at = UNSET
        else:
            started_at = datetime.datetime.fromisoformat(_started_at)

        container = cls(
            created_at=created_at,
            id=id,
            purpose=purpose,
            ready=ready,
            state=state,
            address=address,
            app=app,
            cpu_millis=cpu_millis,
            ended_at=ended_at,
            execution=execution,
            exit_code=exit_code,
            image=image,
            labels=labels,
            memory_bytes=memory_bytes,
            message=message,
            name=name,
            pauses=pauses,
            reason=reason,
            service=service,
            started_at=started_at,
        )

        return container
