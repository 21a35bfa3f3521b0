from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="DeploymentFailure")


@_attrs_define
class DeploymentFailure:
    message: str
    """ Description. """
    reason: str
    """ Class. """
    exit_code: int | Unset = UNSET
    """ Exit code of its process. """
    hint: str | Unset = UNSET
    """ Advice. """
    log_tail: list[str] | Unset = UNSET
    """ Last lines of the build or the process. """
    service: str | Unset = UNSET
    """ The service that failed. """

    def to_dict(self) -> dict[str, Any]:
        message = self.message

        reason = self.reason

        exit_code = self.exit_code

        hint = self.hint

        log_tail: list[str] | Unset = UNSET
        if not isinstance(self.log_tail, Unset):
            log_tail = self.log_tail

        service = self.service

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "message": message,
                "reason": reason,
            }
        )
        if exit_code is not UNSET:
            field_dict["exit_code"] = exit_code
        if hint is not UNSET:
            field_dict["hint"] = hint
        if log_tail is not UNSET:
            field_dict["log_tail"] = log_tail
        if service is not UNSET:
            field_dict["service"] = service

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        message = d.pop("message")

        reason = d.pop("reason")

        exit_code = d.pop("exit_code", UNSET)

        hint = d.pop("hint", UNSET)

        log_tail = cast(list[str], d.pop("log_tail", UNSET))

        service = d.pop("service", UNSET)

        deployment_failure = cls(
            message=message,
            reason=reason,
            exit_code=exit_code,
            hint=hint,
            log_tail=log_tail,
            service=service,
        )

        return deployment_failure
