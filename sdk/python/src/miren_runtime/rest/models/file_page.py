from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.file_info import FileInfo


T = TypeVar("T", bound="FilePage")


@_attrs_define
class FilePage:
    files: list[FileInfo]
    """ Entries, by name. """
    more: bool
    """ There are more after the last one. """

    def to_dict(self) -> dict[str, Any]:
        files = []
        for files_item_data in self.files:
            files_item = files_item_data.to_dict()
            files.append(files_item)

        more = self.more

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "files": files,
                "more": more,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.file_info import FileInfo  # noqa: PLC0415

        d = dict(src_dict)
        files = []
        _files = d.pop("files")
        for files_item_data in _files:
            files_item = FileInfo.from_dict(files_item_data)

            files.append(files_item)

        more = d.pop("more")

        file_page = cls(
            files=files,
            more=more,
        )

        return file_page
