from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.error_detail import ErrorDetail


T = TypeVar("T", bound="Problem")


@_attrs_define
class Problem:
    class_: str
    """ Class of the error, such as not_found. """
    detail: str
    """ What happened. """
    status: int
    """ HTTP status. """
    title: str
    """ Text of the status. """
    type_: str
    """ urn:runtime:error: and the class of the error. """
    errors: list[ErrorDetail] | Unset = UNSET
    """ Parts of the request that are wrong. """
    hint: str | Unset = UNSET
    """ What to do next. """

    def to_dict(self) -> dict[str, Any]:
        class_ = self.class_

        detail = self.detail

        status = self.status

        title = self.title

        type_ = self.type_

        errors: list[dict[str, Any]] | Unset = UNSET
        if not isinstance(self.errors, Unset):
            errors = []
            for errors_item_data in self.errors:
                errors_item = errors_item_data.to_dict()
                errors.append(errors_item)

        hint = self.hint

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "class": class_,
                "detail": detail,
                "status": status,
                "title": title,
                "type": type_,
            }
        )
        if errors is not UNSET:
            field_dict["errors"] = errors
        if hint is not UNSET:
            field_dict["hint"] = hint

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.error_detail import ErrorDetail  # noqa: PLC0415

        d = dict(src_dict)
        class_ = d.pop("class")

        detail = d.pop("detail")

        status = d.pop("status")

        title = d.pop("title")

        type_ = d.pop("type")

        _errors = d.pop("errors", UNSET)
        errors: list[ErrorDetail] | Unset = UNSET
        if _errors is not UNSET:
            errors = []
            for errors_item_data in _errors:
                errors_item = ErrorDetail.from_dict(errors_item_data)

                errors.append(errors_item)

        hint = d.pop("hint", UNSET)

        problem = cls(
            class_=class_,
            detail=detail,
            status=status,
            title=title,
            type_=type_,
            errors=errors,
            hint=hint,
        )

        return problem
