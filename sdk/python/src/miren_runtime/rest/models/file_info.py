from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.file_info_type import FileInfoType, check_file_info_type
from ..types import UNSET, Unset

T = TypeVar("T", bound="FileInfo")


@_attrs_define
class FileInfo:
    gid: int
    """ Number of the group. """
    mode: int
    """ Permission bits. """
    modified_at: datetime.datetime
    """ Time of the last change of its content. """
    name: str
    """ Last element of its path. """
    size_bytes: int
    """ Size. """
    type_: FileInfoType
    """ Type. """
    uid: int
    """ Number of the owner. """
    target: str | Unset = UNSET
    """ Target of a symbolic link. """

    def to_dict(self) -> dict[str, Any]:
        gid = self.gid

        mode = self.mode

        modified_at = self.modified_at.isoformat()

        name = self.name

        size_bytes = self.size_bytes

        type_: str = self.type_

        uid = self.uid

        target = self.target

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "gid": gid,
                "mode": mode,
                "modified_at": modified_at,
                "name": name,
                "size_bytes": size_bytes,
                "type": type_,
                "uid": uid,
            }
        )
        if target is not UNSET:
            field_dict["target"] = target

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        gid = d.pop("gid")

        mode = d.pop("mode")

        modified_at = datetime.datetime.fromisoformat(d.pop("modified_at"))

        name = d.pop("name")

        size_bytes = d.pop("size_bytes")

        type_ = check_file_info_type(d.pop("type"))

        uid = d.pop("uid")

        target = d.pop("target", UNSET)

        file_info = cls(
            gid=gid,
            mode=mode,
            modified_at=modified_at,
            name=name,
            size_bytes=size_bytes,
            type_=type_,
            uid=uid,
            target=target,
        )

        return file_info
