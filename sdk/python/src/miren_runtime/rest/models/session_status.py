from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.execution import Execution
    from ..models.session import Session


T = TypeVar("T", bound="SessionStatus")


@_attrs_define
class SessionStatus:
    session: Session
    execution: Execution | Unset = UNSET

    def to_dict(self) -> dict[str, Any]:
        session = self.session.to_dict()

        execution: dict[str, Any] | Unset = UNSET
        if not isinstance(self.execution, Unset):
            execution = self.execution.to_dict()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "session": session,
            }
        )
        if execution is not UNSET:
            field_dict["execution"] = execution

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.execution import Execution  # noqa: PLC0415
        from ..models.session import Session  # noqa: PLC0415

        d = dict(src_dict)
        session = Session.from_dict(d.pop("session"))

        _execution = d.pop("execution", UNSET)
        execution: Execution | Unset
        if isinstance(_execution, Unset):
            execution = UNSET
        else:
            execution = Execution.from_dict(_execution)

        session_status = cls(
            session=session,
            execution=execution,
        )

        return session_status
