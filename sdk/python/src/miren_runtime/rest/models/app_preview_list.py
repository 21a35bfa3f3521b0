from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.app_preview import AppPreview


T = TypeVar("T", bound="AppPreviewList")


@_attrs_define
class AppPreviewList:
    previews: list[AppPreview]
    """ Previews by name. """

    def to_dict(self) -> dict[str, Any]:
        previews = []
        for previews_item_data in self.previews:
            previews_item = previews_item_data.to_dict()
            previews.append(previews_item)

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "previews": previews,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.app_preview import AppPreview  # noqa: PLC0415

        d = dict(src_dict)
        previews = []
        _previews = d.pop("previews")
        for previews_item_data in _previews:
            previews_item = AppPreview.from_dict(previews_item_data)

            previews.append(previews_item)

        app_preview_list = cls(
            previews=previews,
        )

        return app_preview_list
