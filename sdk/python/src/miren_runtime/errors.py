"""Errors of the client. Those of the server are ``ProblemError``: one class for each class of problem."""

from __future__ import annotations

from typing import Any

import httpx


class MirenError(Exception):
    """Any error of this package."""


class ConnectionFailed(MirenError):
    """The server was not reached, or did not answer in time."""


class ProblemError(MirenError):
    """The server refused a request, with a problem of RFC 9457."""

    def __init__(self, status: int, error_class: str, detail: str, hint: str = "", errors: list[Any] | None = None):
        super().__init__(f"{detail} ({hint})" if hint else detail)
        self.status = status
        """HTTP status."""
        self.error_class = error_class
        """Class of the error, such as ``not_found``; empty if the answer was no problem."""
        self.detail = detail
        """What happened."""
        self.hint = hint
        """What to do next; may be empty."""
        self.errors = errors or []
        """Parts of the request that are wrong: ``{"location": ..., "message": ...}``."""


class InvalidArgument(ProblemError):
    """``invalid_argument``"""


class Unauthenticated(ProblemError):
    """``unauthenticated``"""


class PermissionDenied(ProblemError):
    """``permission_denied``"""


class NotFound(ProblemError):
    """``not_found``"""


class AlreadyExists(ProblemError):
    """``already_exists``"""


class Conflict(ProblemError):
    """``conflict``"""


class FailedPrecondition(ProblemError):
    """``failed_precondition``"""


class ResourceExhausted(ProblemError):
    """``resource_exhausted``"""


class Unavailable(ProblemError):
    """``unavailable``"""


class DeadlineExceeded(ProblemError):
    """``deadline_exceeded``"""


class Unimplemented(ProblemError):
    """``unimplemented``"""


class Internal(ProblemError):
    """``internal``"""


_classes: dict[str, type[ProblemError]] = {(c.__doc__ or "").strip("`"): c for c in ProblemError.__subclasses__()}


def problem_of(response: httpx.Response) -> ProblemError:
    """Return the error for an answer, whose body has been read."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        return ProblemError(response.status_code, "", response.text or response.reason_phrase)
    return error_of({"status": response.status_code, "detail": response.reason_phrase, **problem})


def error_of(problem: dict[str, Any]) -> ProblemError:
    """Return the error for a problem."""
    name = str(problem.get("class", ""))
    return _classes.get(name, ProblemError)(
        int(problem.get("status", 0)),
        name,
        str(problem.get("detail", "")),
        str(problem.get("hint", "")),
        problem.get("errors"),
    )
