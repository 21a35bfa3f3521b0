from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.input_file import InputFile


T = TypeVar("T", bound="AppPreviewSource")


@_attrs_define
class AppPreviewSource:
    dockerfile: str | Unset = UNSET
    """ Text of a Dockerfile; absent: that of the files, or how to build them is detected. """
    files: list[InputFile] | Unset = UNSET
    """ The source, app.toml too, with relative paths; at most 8 MiB together. With an image only app.toml counts.
    """
    host: str | Unset = UNSET
    """ Its host; absent: NAME--APP below the ingress's local domain. """
    image: str | Unset = UNSET
    """ Image that is built already; the server must reach its registry. """
    message: str | Unset = UNSET
    """ Reason for the change, shown in the history. """
    no_cache: bool | Unset = UNSET
    """ Build it without the cache. """
    stack: str | Unset = UNSET
    """ Stack to build it with; absent: from app.toml, or detected. """
    ttl_seconds: int | Unset = UNSET
    """ Time after which it ends; absent: 72 hours. """

    def to_dict(self) -> dict[str, Any]:
        dockerfile = self.dockerfile

        files: list[dict[str, Any]] | Unset = UNSET
        if not isinstance(self.files, Unset):
            files = []
            for files_item_data in self.files:
                files_item = files_item_data.to_dict()
                files.append(files_item)

        host = self.host

        image = self.image

        message = self.message

        no_cache = self.no_cache

        stack = self.stack

        ttl_seconds = self.ttl_seconds

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if dockerfile is not UNSET:
            field_dict["dockerfile"] = dockerfile
        if files is not UNSET:
            field_dict["files"] = files
        if host is not UNSET:
            field_dict["host"] = host
        if image is not UNSET:
            field_dict["image"] = image
        if message is not UNSET:
            field_dict["message"] = message
        if no_cache is not UNSET:
            field_dict["no_cache"] = no_cache
        if stack is not UNSET:
            field_dict["stack"] = stack
        if ttl_seconds is not UNSET:
            field_dict["ttl_seconds"] = ttl_seconds

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.input_file import InputFile  # noqa: PLC0415

        d = dict(src_dict)
        dockerfile = d.pop("dockerfile", UNSET)

        _files = d.pop("files", UNSET)
        files: list[InputFile] | Unset = UNSET
        if _files is not UNSET:
            files = []
            for files_item_data in _files:
                files_item = InputFile.from_dict(files_item_data)

                files.append(files_item)

        host = d.pop("host", UNSET)

        image = d.pop("image", UNSET)

        message = d.pop("message", UNSET)

        no_cache = d.pop("no_cache", UNSET)

        stack = d.pop("stack", UNSET)

        ttl_seconds = d.pop("ttl_seconds", UNSET)

        app_preview_source = cls(
            dockerfile=dockerfile,
            files=files,
            host=host,
            image=image,
            message=message,
            no_cache=no_cache,
            stack=stack,
            ttl_seconds=ttl_seconds,
        )

        return app_preview_source
