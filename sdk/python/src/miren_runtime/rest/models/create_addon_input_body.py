from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.create_addon_input_body_engine import (
    CreateAddonInputBodyEngine,
    check_create_addon_input_body_engine,
)
from ..types import UNSET, Unset

T = TypeVar("T", bound="CreateAddonInputBody")


@_attrs_define
class CreateAddonInputBody:
    name: str
    """ Name; the app that runs it has the same. """
    backup: str | Unset = UNSET
    """ Backup of the source that it begins with; absent: it begins empty. """
    engine: CreateAddonInputBodyEngine | Unset = UNSET
    """ Program; with a backup that of its addon. """
    memory_bytes: int | Unset = UNSET
    """ Memory of its sandbox; absent: 512 MiB. """
    size_bytes: int | Unset = UNSET
    """ Size of its disk; absent: 10 GiB, with a backup that of the backup. """
    source: str | Unset = UNSET
    """ Addon of the backup. """
    version: str | Unset = UNSET
    """ Version of the program; absent: the one that the server's machine has packages of. """

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        backup = self.backup

        engine: str | Unset = UNSET
        if not isinstance(self.engine, Unset):
            engine = self.engine

        memory_bytes = self.memory_bytes

        size_bytes = self.size_bytes

        source = self.source

        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "name": name,
            }
        )
        if backup is not UNSET:
            field_dict["backup"] = backup
        if engine is not UNSET:
            field_dict["engine"] = engine
        if memory_bytes is not UNSET:
            field_dict["memory_bytes"] = memory_bytes
        if size_bytes is not UNSET:
            field_dict["size_bytes"] = size_bytes
        if source is not UNSET:
            field_dict["source"] = source
        if version is not UNSET:
            field_dict["version"] = version

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        name = d.pop("name")

        backup = d.pop("backup", UNSET)

        _engine = d.pop("engine", UNSET)
        engine: CreateAddonInputBodyEngine | Unset
        if isinstance(_engine, Unset):
            engine = UNSET
        else:
            engine = check_create_addon_input_body_engine(_engine)

        memory_bytes = d.pop("memory_bytes", UNSET)

        size_bytes = d.pop("size_bytes", UNSET)

        source = d.pop("source", UNSET)

        version = d.pop("version", UNSET)

        create_addon_input_body = cls(
            name=name,
            backup=backup,
            engine=engine,
            memory_bytes=memory_bytes,
            size_bytes=size_bytes,
            source=source,
            version=version,
        )

        return create_addon_input_body
