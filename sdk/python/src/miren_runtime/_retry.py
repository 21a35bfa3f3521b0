"""Which requests are repeated, and when."""

from __future__ import annotations

import random

import httpx

_FIRST_DELAY = 0.5  # seconds
_LONGEST_DELAY = 30.0  # seconds


def attempts(request: httpx.Request, retries: int) -> int:
    """Return how often to send a request. Content that comes in parts comes once."""
    return 1 + retries if isinstance(request.stream, httpx.ByteStream) else 1


def repeatable(request: httpx.Request) -> bool:
    """Report whether a request can be sent twice, with the effect of one."""
    return request.method in ("GET", "PUT", "DELETE") or "Idempotency-Key" in request.headers


def after_answer(request: httpx.Request, response: httpx.Response) -> bool:
    """Report whether an answer asks for the request to be repeated.

    With 429 nothing was done. With 503 something may have been.
    """
    return response.status_code == 429 or response.status_code == 503 and repeatable(request)


def after_failure(request: httpx.Request, error: httpx.TransportError) -> bool:
    """Report whether to repeat a request that got no answer."""
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return True
    return isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError)) and repeatable(request)


def delay(attempt: int, response: httpx.Response | None = None) -> float:
    """Return the seconds before the next attempt: what the server asks for, else twice as many each time."""
    if response is not None and response.headers.get("Retry-After", "").isdecimal():
        return min(float(response.headers["Retry-After"]), _LONGEST_DELAY)
    longest: float = min(_FIRST_DELAY * 2**attempt, _LONGEST_DELAY)
    return longest * (0.5 + random.random() / 2)
