from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

T = TypeVar("T", bound="HandlerError")


@_attrs_define
class HandlerError:
    error_message: str
    """ Message. """
    error_type: str
    """ Type. """
    stack_trace: list[str]
    """ Stack. """

    def to_dict(self) -> dict[str, Any]:
        error_message = self.error_message

        error_type = self.error_type

        stack_trace = self.stack_trace

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "errorMessage": error_message,
                "errorType": error_type,
                "stackTrace": stack_trace,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        error_message = d.pop("errorMessage")

        error_type = d.pop("errorType")

        stack_trace = cast(list[str], d.pop("stackTrace"))

        handler_error = cls(
            error_message=error_message,
            error_type=error_type,
            stack_trace=stack_trace,
        )

        return handler_error
