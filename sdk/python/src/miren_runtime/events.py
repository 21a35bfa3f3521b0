"""Events of streams."""

from __future__ import annotations

import json
from typing import TypeAlias

from .errors import error_of
from .rest.models import EndEvent, Execution, NoteEvent, OutputEvent

Event: TypeAlias = OutputEvent | NoteEvent | Execution | EndEvent
"""Output, a message, the state of an execution, or the end of a command."""


def event_of(name: str, data: str) -> Event | None:
    """Return an event; None for one of a newer server. An event of an error is raised."""
    value = json.loads(data)
    if name == "output":
        return OutputEvent.from_dict(value)
    if name == "note":
        return NoteEvent.from_dict(value)
    if name == "status" or name == "end" and "state" in value:
        return Execution.from_dict(value)
    if name == "end":
        return EndEvent.from_dict(value)
    if name == "error":
        raise error_of(value)
    return None
