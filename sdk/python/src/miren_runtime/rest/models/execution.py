from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.execution_outcome import ExecutionOutcome, check_execution_outcome
from ..models.execution_state import ExecutionState, check_execution_state
from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.execution_labels import ExecutionLabels
    from ..models.metrics import Metrics


T = TypeVar("T", bound="Execution")


@_attrs_define
class Execution:
    attempt: int
    """ Number of the attempt that is under way, or was last. """
    created_at: datetime.datetime
    """ Time of the submission. """
    id: str
    """ Id. """
    state: ExecutionState
    """ State. """
    batch: str | Unset = UNSET
    """ Id of its batch. """
    ended_at: datetime.datetime | Unset = UNSET
    """ Time of its end. """
    exit_code: int | Unset = UNSET
    """ Exit code; 128+n for signal n, 124 after a timeout. """
    labels: ExecutionLabels | Unset = UNSET
    """ Labels. """
    language: str | Unset = UNSET
    """ Language of the program. """
    message: str | Unset = UNSET
    """ Reason of the outcome. """
    metrics: Metrics | Unset = UNSET
    outcome: ExecutionOutcome | Unset = UNSET
    """ How it ended. """
    session: str | Unset = UNSET
    """ The persistent session in which it runs; absent: it has a sandbox of its own. """
    started_at: datetime.datetime | Unset = UNSET
    """ Start of the program. """

    def to_dict(self) -> dict[str, Any]:
        attempt = self.attempt

        created_at = self.created_at.isoformat()

        id = self.id

        state: str = self.state

        batch = self.batch

        ended_at: str | Unset = UNSET
        if not isinstance(self.ended_at, Unset):
            ended_at = self.ended_at.isoformat()

        exit_code = self.exit_code

        labels: dict[str, Any] | Unset = UNSET
        if not isinstance(self.labels, Unset):
            labels = self.labels.to_dict()

        language = self.language

        message = self.message

        metrics: dict[str, Any] | Unset = UNSET
        if not isinstance(self.metrics, Unset):
            metrics = self.metrics.to_dict()

        outcome: str | Unset = UNSET
        if not isinstance(self.outcome, Unset):
            outcome = self.outcome

        session = self.session

        started_at: str | Unset = UNSET
        if not isinstance(self.started_at, Unset):
            started_at = self.started_at.isoformat()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "attempt": attempt,
                "created_at": created_at,
                "id": id,
                "state": state,
            }
        )
        if batch is not UNSET:
            field_dict["batch"] = batch
        if ended_at is not UNSET:
            field_dict["ended_at"] = ended_at
        if exit_code is not UNSET:
            field_dict["exit_code"] = exit_code
        if labels is not UNSET:
            field_dict["labels"] = labels
        if language is not UNSET:
            field_dict["language"] = language
        if message is not UNSET:
            field_dict["message"] = message
        if metrics is not UNSET:
            field_dict["metrics"] = metrics
        if outcome is not UNSET:
            field_dict["outcome"] = outcome
        if session is not UNSET:
            field_dict["session"] = session
        if started_at is not UNSET:
            field_dict["started_at"] = started_at

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.execution_labels import ExecutionLabels  # noqa: PLC0415
        from ..models.metrics import Metrics  # noqa: PLC0415

        d = dict(src_dict)
        attempt = d.pop("attempt")

        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        id = d.pop("id")

        state = check_execution_state(d.pop("state"))

        batch = d.pop("batch", UNSET)

        _ended_at = d.pop("ended_at", UNSET)
        ended_at: datetime.datetime | Unset
        if isinstance(_ended_at, Unset):
            ended_at = UNSET
        else:
            ended_at = datetime.datetime.fromisoformat(_ended_at)

        exit_code = d.pop("exit_code", UNSET)

        _labels = d.pop("labels", UNSET)
        labels: ExecutionLabels | Unset
        if isinstance(_labels, Unset):
            labels = UNSET
        else:
            labels = ExecutionLabels.from_dict(_labels)

        language = d.pop("language", UNSET)

        message = d.pop("message", UNSET)

        _metrics = d.pop("metrics", UNSET)
        metrics: Metrics | Unset
        if isinstance(_metrics, Unset):
            metrics = UNSET
        else:
            metrics = Metrics.from_dict(_metrics)

        _outcome = d.pop("outcome", UNSET)
        outcome: ExecutionOutcome | Unset
        if isinstance(_outcome, Unset):
            outcome = UNSET
        else:
            outcome = check_execution_outcome(_outcome)

        session = d.pop("session", UNSET)

        _started_at = d.pop("started_at", UNSET)
        started_at: datetime.datetime | Unset
        if isinstance(_started_at, Unset):
            started_at = UNSET
        else:
            started_at = datetime.datetime.fromisoformat(_started_at)

        execution = cls(
            attempt=attempt,
            created_at=created_at,
            id=id,
            state=state,
            batch=batch,
            ended_at=ended_at,
            exit_code=exit_code,
            labels=labels,
            language=language,
            message=message,
            metrics=metrics,
            outcome=outcome,
            session=session,
            started_at=started_at,
        )

        return execution
