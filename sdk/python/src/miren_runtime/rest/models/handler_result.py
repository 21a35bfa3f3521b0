from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.handler_result_outcome import (
    HandlerResultOutcome,
    check_handler_result_outcome,
)
from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.handler_error import HandlerError


T = TypeVar("T", bound="HandlerResult")


@_attrs_define
class HandlerResult:
    duration_ms: float
    """ Milliseconds of the call. """
    init_ms: float
    """ Milliseconds to load it. """
    max_memory_kb: int
    """ Most memory of its process, in KiB. """
    outcome: HandlerResultOutcome
    """ How it ended. """
    error: HandlerError | Unset = UNSET
    install_ms: float | Unset = UNSET
    """ Milliseconds for the packages that it states. """
    value: Any | Unset = UNSET
    """ What it returned; of a success. """

    def to_dict(self) -> dict[str, Any]:
        duration_ms = self.duration_ms

        init_ms = self.init_ms

        max_memory_kb = self.max_memory_kb

        outcome: str = self.outcome

        error: dict[str, Any] | Unset = UNSET
        if not isinstance(self.error, Unset):
            error = self.error.to_dict()

        install_ms = self.install_ms

        value = self.value

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "duration_ms": duration_ms,
                "init_ms": init_ms,
                "max_memory_kb": max_memory_kb,
                "outcome": outcome,
            }
        )
        if error is not UNSET:
            field_dict["error"] = error
        if install_ms is not UNSET:
            field_dict["install_ms"] = install_ms
        if value is not UNSET:
            field_dict["value"] = value

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.handler_error import HandlerError  # noqa: PLC0415

        d = dict(src_dict)
        duration_ms = d.pop("duration_ms")

        init_ms = d.pop("init_ms")

        max_memory_kb = d.pop("max_memory_kb")

        outcome = check_handler_result_outcome(d.pop("outcome"))

        _error = d.pop("error", UNSET)
        error: HandlerError | Unset
        if isinstance(_error, Unset):
            error = UNSET
        else:
            error = HandlerError.from_dict(_error)

        install_ms = d.pop("install_ms", UNSET)

        value = d.pop("value", UNSET)

        handler_result = cls(
            duration_ms=duration_ms,
            init_ms=init_ms,
            max_memory_kb=max_memory_kb,
            outcome=outcome,
            error=error,
            install_ms=install_ms,
            value=value,
        )

        return handler_result
