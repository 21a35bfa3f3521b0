from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.session_mode import SessionMode, check_session_mode
from ..models.session_on_idle import SessionOnIdle, check_session_on_idle
from ..models.session_state import SessionState, check_session_state
from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.session_labels import SessionLabels


T = TypeVar("T", bound="Session")


@_attrs_define
class Session:
    created_at: datetime.datetime
    """ Time of its creation. """
    id: str
    """ Id of the sandbox or execution. """
    mode: SessionMode
    """ persistent: it stays until it is deleted or expires. ephemeral: it runs one program and ends. """
    state: SessionState
    """ State. """
    agent: str | Unset = UNSET
    """ Name of the agent that it is for. """
    cpu_millis: int | Unset = UNSET
    """ CPU, in thousandths. """
    disk_bytes: int | Unset = UNSET
    """ Bytes that it may write. """
    ended_at: datetime.datetime | Unset = UNSET
    """ Time of its end. """
    exit_code: int | Unset = UNSET
    """ Exit code of its main process or program. """
    expires_at: datetime.datetime | Unset = UNSET
    """ Time at which it ends; absent: it has no time to live, or has not begun. """
    idle_timeout_seconds: int | Unset = UNSET
    """ Time without use after which on_idle happens. """
    image: str | Unset = UNSET
    """ Image. """
    labels: SessionLabels | Unset = UNSET
    """ Labels. """
    memory_bytes: int | Unset = UNSET
    """ Memory. """
    message: str | Unset = UNSET
    """ Problem and advice. """
    name: str | Unset = UNSET
    """ Name. """
    on_idle: SessionOnIdle | Unset = UNSET
    """ What happens then. """
    origin: str | Unset = UNSET
    """ session: the agent had it; pool: it was warm; cold: it was made for the request. """
    reason: str | Unset = UNSET
    """ Reason of its end, or the outcome of its program. """
    started_at: datetime.datetime | Unset = UNSET
    """ Time of its start. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        id = self.id

        mode: str = self.mode

        state: str = self.state

        agent = self.agent

        cpu_millis = self.cpu_millis

        disk_bytes = self.disk_bytes

        ended_at: str | Unset = UNSET
        if not isinstance(self.ended_at, Unset):
            ended_at = self.ended_at.isoformat()

        exit_code = self.exit_code

        expires_at: str | Unset = UNSET
        if not isinstance(self.expires_at, Unset):
            expires_at = self.expires_at.isoformat()

        idle_timeout_seconds = self.idle_timeout_seconds

        image = self.image

        labels: dict[str, Any] | Unset = UNSET
        if not isinstance(self.labels, Unset):
            labels = self.labels.to_dict()

        memory_bytes = self.memory_bytes

        message = self.message

        name = self.name

        on_idle: str | Unset = UNSET
        if not isinstance(self.on_idle, Unset):
            on_idle = self.on_idle

        origin = self.origin

        reason = self.reason

        started_at: str | Unset = UNSET
        if not isinstance(self.started_at, Unset):
            started_at = self.started_at.isoformat()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "id": id,
                "mode": mode,
                "state": state,
            }
        )
        if agent is not UNSET:
            field_dict["agent"] = agent
        if cpu_millis is not UNSET:
            field_dict["cpu_millis"] = cpu_millis
        if disk_bytes is not UNSET:
            field_dict["disk_bytes"] = disk_bytes
        if ended_at is not UNSET:
            field_dict["ended_at"] = ended_at
        if exit_code is not UNSET:
            field_dict["exit_code"] = exit_code
        if expires_at is not UNSET:
            field_dict["expires_at"] = expires_at
        if idle_timeout_seconds is not UNSET:
            field_dict["idle_timeout_seconds"] = idle_timeout_seconds
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
        if on_idle is not UNSET:
            field_dict["on_idle"] = on_idle
        if origin is not UNSET:
            field_dict["origin"] = origin
        if reason is not UNSET:
            field_dict["reason"] = reason
        if started_at is not UNSET:
            field_dict["started_at"] = started_at

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.session_labels import SessionLabels  # noqa: PLC0415

        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        id = d.pop("id")

        mode = check_session_mode(d.pop("mode"))

        state = check_session_state(d.pop("state"))

        agent = d.pop("agent", UNSET)

        cpu_millis = d.pop("cpu_millis", UNSET)

        disk_bytes = d.pop("disk_bytes", UNSET)

        _ended_at = d.pop("ended_at", UNSET)
        ended_at: datetime.datetime | Unset
        if isinstance(_ended_at, Unset):
            ended_at = UNSET
        else:
            ended_at = datetime.datetime.fromisoformat(_ended_at)

        exit_code = d.pop("exit_code", UNSET)

        _expires_at = d.pop("expires_at", UNSET)
        expires_at: datetime.datetime | Unset
        if isinstance(_expires_at, Unset):
            expires_at = UNSET
        else:
            expires_at = datetime.datetime.fromisoformat(_expires_at)

        idle_timeout_seconds = d.pop("idle_timeout_seconds", UNSET)

        image = d.pop("image", UNSET)

        _labels = d.pop("labels", UNSET)
        labels: SessionLabels | Unset
        if isinstance(_labels, Unset):
            labels = UNSET
        else:
            labels = SessionLabels.from_dict(_labels)

        memory_bytes = d.pop("memory_bytes", UNSET)

        message = d.pop("message", UNSET)

        name = d.pop("name", UNSET)

        _on_idle = d.pop("on_idle", UNSET)
        on_idle: SessionOnIdle | Unset
        if isinstance(_on_idle, Unset):
            on_idle = UNSET
        else:
            on_idle = check_session_on_idle(_on_idle)

        origin = d.pop("origin", UNSET)

        reason = d.pop("reason", UNSET)

        _started_at = d.pop("started_at", UNSET)
        started_at: datetime.datetime | Unset
        if isinstance(_started_at, Unset):
            started_at = UNSET
        else:
            started_at = datetime.datetime.fromisoformat(_started_at)

        session = cls(
            created_at=created_at,
            id=id,
            mode=mode,
            state=state,
            agent=agent,
            cpu_millis=cpu_millis,
            disk_bytes=disk_bytes,
            ended_at=ended_at,
            exit_code=exit_code,
            expires_at=expires_at,
            idle_timeout_seconds=idle_timeout_seconds,
            image=image,
            labels=labels,
            memory_bytes=memory_bytes,
            message=message,
            name=name,
            on_idle=on_idle,
            origin=origin,
            reason=reason,
            started_at=started_at,
        )

        return session
