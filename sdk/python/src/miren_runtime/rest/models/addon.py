from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.addon_engine import AddonEngine, check_addon_engine
from ..models.addon_state import AddonState, check_addon_state
from ..types import UNSET, Unset

T = TypeVar("T", bound="Addon")


@_attrs_define
class Addon:
    created_at: datetime.datetime
    """ Time of its creation. """
    credential: int
    """ Number of the credential that apps are to have. A rotation counts up. """
    engine: AddonEngine
    """ Program that it is. """
    id: str
    """ Id. """
    memory_bytes: int
    """ Memory of its sandbox. """
    name: str
    """ Name. """
    size_bytes: int
    """ Size of its disk. """
    state: AddonState
    """ State. """
    endpoint: str | Unset = UNSET
    """ Host and port, for the apps of the project. """
    message: str | Unset = UNSET
    """ What it waits for, or why it failed. """
    version: str | Unset = UNSET
    """ Version of the program that wrote its disk. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        credential = self.credential

        engine: str = self.engine

        id = self.id

        memory_bytes = self.memory_bytes

        name = self.name

        size_bytes = self.size_bytes

        state: str = self.state

        endpoint = self.endpoint

        message = self.message

        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "credential": credential,
                "engine": engine,
                "id": id,
                "memory_bytes": memory_bytes,
                "name": name,
                "size_bytes": size_bytes,
                "state": state,
            }
        )
        if endpoint is not UNSET:
            field_dict["endpoint"] = endpoint
        if message is not UNSET:
            field_dict["message"] = message
        if version is not UNSET:
            field_dict["version"] = version

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        credential = d.pop("credential")

        engine = check_addon_engine(d.pop("engine"))

        id = d.pop("id")

        memory_bytes = d.pop("memory_bytes")

        name = d.pop("name")

        size_bytes = d.pop("size_bytes")

        state = check_addon_state(d.pop("state"))

        endpoint = d.pop("endpoint", UNSET)

        message = d.pop("message", UNSET)

        version = d.pop("version", UNSET)

        addon = cls(
            created_at=created_at,
            credential=credential,
            engine=engine,
            id=id,
            memory_bytes=memory_bytes,
            name=name,
            size_bytes=size_bytes,
            state=state,
            endpoint=endpoint,
            message=message,
            version=version,
        )

        return addon
