from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="CommandResult")


@_attrs_define
class CommandResult:
    stderr: str
    """ Error output. Bytes that are not UTF-8 are replaced. """
    stdout: str
    """ Output. Bytes that are not UTF-8 are replaced. """
    exit_code: int | Unset = UNSET
    """ Exit code; 128+n for signal n, 124 if the time was over. """
    id: str | Unset = UNSET
    """ Id of a command in the background, of which nothing else is known yet. """
    reason: str | Unset = UNSET
    """ Why it was ended from outside: oom, ttl, idle, user; absent: it was not, as far as that is known. """
    timed_out: bool | Unset = UNSET
    """ Its time was over. """
    truncated: bool | Unset = UNSET
    """ There was more than a MiB of one of them; the rest was dropped. """

    def to_dict(self) -> dict[str, Any]:
        stderr = self.stderr

        stdout = self.stdout

        exit_code = self.exit_code

        id = self.id

        reason = self.reason

        timed_out = self.timed_out

        truncated = self.truncated

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "stderr": stderr,
                "stdout": stdout,
            }
        )
        if exit_code is not UNSET:
            field_dict["exit_code"] = exit_code
        if id is not UNSET:
            field_dict["id"] = id
        if reason is not UNSET:
            field_dict["reason"] = reason
        if timed_out is not UNSET:
            field_dict["timed_out"] = timed_out
        if truncated is not UNSET:
            field_dict["truncated"] = truncated

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        stderr = d.pop("stderr")

        stdout = d.pop("stdout")

        exit_code = d.pop("exit_code", UNSET)

        id = d.pop("id", UNSET)

        reason = d.pop("reason", UNSET)

        timed_out = d.pop("timed_out", UNSET)

        truncated = d.pop("truncated", UNSET)

        command_result = cls(
            stderr=stderr,
            stdout=stdout,
            exit_code=exit_code,
            id=id,
            reason=reason,
            timed_out=timed_out,
            truncated=truncated,
        )

        return command_result
