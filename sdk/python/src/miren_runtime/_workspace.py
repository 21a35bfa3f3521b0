"""What the workspace API answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkspaceSession:
    """A session, whose id is the caller's."""

    session_id: str
    sandbox_id: str
    state: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Metrics:
    """What an execution took."""

    queue_ms: int
    """Time until a place was free."""
    setup_ms: int
    """Time from then until the program began."""
    wall_ms: int
    """Time that the program took."""
    cpu_ms: int | None
    """Processor time; None if it was not measured."""
    memory_bytes: int | None
    """The most memory of the sandbox; None if it was not measured."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a program or command left."""

    session_id: str
    exit_code: int
    """124 if its time was over."""
    stdout: str
    stderr: str
    result: str | None
    """What it wrote to the file that the variable EXECUTION_RESULT names; None: nothing."""
    outcome: str
    """How it ended: ``succeeded``, ``failed``, ``timeout``, …"""
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file that was written."""

    filename: str
    size: int
    """Bytes."""


def session_of(value: dict[str, Any]) -> WorkspaceSession:
    return WorkspaceSession(
        session_id=value["session_id"],
        sandbox_id=value["sandbox_id"],
        state=value["state"],
        created_at=datetime.fromisoformat(value["created_at"]),
    )


def result_of(value: dict[str, Any]) -> Result:
    metrics = value["metrics"]
    return Result(
        session_id=value["session_id"],
        exit_code=value["exit_code"],
        stdout=value["stdout"],
        stderr=value["stderr"],
        result=value["result"],
        outcome=value["outcome"],
        metrics=Metrics(
            queue_ms=metrics["queue_ms"],
            setup_ms=metrics["setup_ms"],
            wall_ms=metrics["wall_ms"],
            cpu_ms=metrics["cpu_ms"],
            memory_bytes=metrics["memory_bytes"],
        ),
    )


def file_of(value: dict[str, Any]) -> UploadedFile:
    return UploadedFile(filename=value["filename"], size=value["size"])
