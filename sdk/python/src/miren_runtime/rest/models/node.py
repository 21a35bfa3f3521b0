from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.node_state import NodeState, check_node_state
from ..types import UNSET, Unset

T = TypeVar("T", bound="Node")


@_attrs_define
class Node:
    arch: str
    """ Architecture of its CPU. """
    cordoned: bool
    """ An administrator lets no new sandboxes be placed on it. """
    cpu_millis: int
    """ CPU that sandboxes may reserve, in thousandths. """
    created_at: datetime.datetime
    """ Time of its creation. """
    disk_full: bool
    """ None are placed on it because its disk is nearly full. """
    id: str
    """ Id of the node. """
    memory_bytes: int
    """ Memory that sandboxes may reserve. """
    name: str
    """ Name of the node. """
    reserved_cpu_millis: int
    """ CPU that they reserve, in thousandths. """
    reserved_memory_bytes: int
    """ Memory that they reserve. """
    runner: bool
    """ It dials out to the server (r runner). """
    sandboxes: int
    """ Sandboxes on it that have not ended. """
    state: NodeState
    """ Whether it is alive. """
    disk_free_bytes: int | Unset = UNSET
    """ Free space of its state directory when that was last reported. """
    hostname: str | Unset = UNSET
    """ Name of the machine. """
    last_seen: datetime.datetime | Unset = UNSET
    """ Time of its last report. """
    message: str | Unset = UNSET
    """ Reason why it is not ready. """
    version: str | Unset = UNSET
    """ Version of runtime on it. """

    def to_dict(self) -> dict[str, Any]:
        arch = self.arch

        cordoned = self.cordoned

        cpu_millis = self.cpu_millis

        created_at = self.created_at.isoformat()

        disk_full = self.disk_full

        id = self.id

        memory_bytes = self.memory_bytes

        name = self.name

        reserved_cpu_millis = self.reserved_cpu_millis

        reserved_memory_bytes = self.reserved_memory_bytes

        runner = self.runner

        sandboxes = self.sandboxes

        state: str = self.state

        disk_free_bytes = self.disk_free_bytes

        hostname = self.hostname

        last_seen: str | Unset = UNSET
        if not isinstance(self.last_seen, Unset):
            last_seen = self.last_seen.isoformat()

        message = self.message

        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "arch": arch,
                "cordoned": cordoned,
                "cpu_millis": cpu_millis,
                "created_at": created_at,
                "disk_full": disk_full,
                "id": id,
                "memory_bytes": memory_bytes,
                "name": name,
                "reserved_cpu_millis": reserved_cpu_millis,
                "reserved_memory_bytes": reserved_memory_bytes,
                "runner": runner,
                "sandboxes": sandboxes,
                "state": state,
            }
        )
        if disk_free_bytes is not UNSET:
            field_dict["disk_free_bytes"] = disk_free_bytes
        if hostname is not UNSET:
            field_dict["hostname"] = hostname
        if last_seen is not UNSET:
            field_dict["last_seen"] = last_seen
        if message is not UNSET:
            field_dict["message"] = message
        if version is not UNSET:
            field_dict["version"] = version

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        arch = d.pop("arch")

        cordoned = d.pop("cordoned")

        cpu_millis = d.pop("cpu_millis")

        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        disk_full = d.pop("disk_full")

        id = d.pop("id")

        memory_bytes = d.pop("memory_bytes")

        name = d.pop("name")

        reserved_cpu_millis = d.pop("reserved_cpu_millis")

        reserved_memory_bytes = d.pop("reserved_memory_bytes")

        runner = d.pop("runner")

        sandboxes = d.pop("sandboxes")

        state = check_node_state(d.pop("state"))

        disk_free_bytes = d.pop("disk_free_bytes", UNSET)

        hostname = d.pop("hostname", UNSET)

        _last_seen = d.pop("last_seen", UNSET)
        last_seen: datetime.datetime | Unset
        if isinstance(_last_seen, Unset):
            last_seen = UNSET
        else:
            last_seen = datetime.datetime.fromisoformat(_last_seen)

        message = d.pop("message", UNSET)

        version = d.pop("version", UNSET)

        node = cls(
            arch=arch,
            cordoned=cordoned,
            cpu_millis=cpu_millis,
            created_at=created_at,
            disk_full=disk_full,
            id=id,
            memory_bytes=memory_bytes,
            name=name,
            reserved_cpu_millis=reserved_cpu_millis,
            reserved_memory_bytes=reserved_memory_bytes,
            runner=runner,
            sandboxes=sandboxes,
            state=state,
            disk_free_bytes=disk_free_bytes,
            hostname=hostname,
            last_seen=last_seen,
            message=message,
            version=version,
        )

        return node
