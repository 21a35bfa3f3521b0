"""The hand-written layer, with a server that is a function."""

from __future__ import annotations

import json
from collections.abc import Callable

import anyio
import httpx
import pytest

import miren_runtime
from miren_runtime.rest import models

SESSION = {"id": "sb-1", "mode": "persistent", "state": "new-state", "created_at": "2026-01-01T00:00:00Z", "unknown": 1}
Answer = Callable[[int, httpx.Request], httpx.Response]


def refusal(status: int, error_class: str) -> httpx.Response:
    problem = {"status": status, "class": error_class, "detail": "no", "hint": "try"}
    return httpx.Response(status, headers={"Retry-After": "0"}, json=problem)


class Server:
    """Answers attempt n, from 1, with ``answer(n, request)``."""

    def __init__(self, answer: Answer):
        self.requests: list[httpx.Request] = []
        self._answer = answer

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self._answer(len(self.requests), request)

    def client(self) -> miren_runtime.Client:
        return miren_runtime.Client("http://server/", "key", transport=httpx.MockTransport(self))

    def async_client(self) -> miren_runtime.AsyncClient:
        return miren_runtime.AsyncClient("http://server/", "key", transport=httpx.MockTransport(self))


def refuse_twice(n: int, request: httpx.Request) -> httpx.Response:
    if n == 1:
        return refusal(429, "resource_exhausted")
    if n == 2:
        raise httpx.ReadError("the connection broke", request=request)
    return httpx.Response(201, json=SESSION)


def test_refused_creation_is_repeated_with_its_key() -> None:
    server = Server(refuse_twice)
    with server.client() as client:
        sandbox = client.create("python", labels={"a": "b"}, egress={"mode": "none"})
    assert sandbox.id == "sb-1"
    assert str(sandbox.session.state) == "new-state"  # of a newer server
    assert len(server.requests) == 3
    assert len({request.headers["Idempotency-Key"] for request in server.requests}) == 1
    request = server.requests[2]
    assert str(request.url) == "http://server/api/v1/sessions?wait=60"
    assert request.headers["Authorization"] == "Bearer key"
    assert json.loads(request.content) == {
        "template": "python",
        "labels": {"a": "b"},
        "egress": {"mode": "none"},
    }


def test_async_client_repeats_too() -> None:
    server = Server(refuse_twice)

    async def main() -> None:
        async with server.async_client() as client:
            assert (await client.create()).id == "sb-1"

    anyio.run(main)
    assert len(server.requests) == 3


def test_command_that_may_have_run_is_not_repeated() -> None:
    server = Server(lambda n, _: httpx.Response(200, json=SESSION) if n == 1 else refusal(503, "unavailable"))
    with server.client() as client, pytest.raises(miren_runtime.Unavailable) as caught:
        client.get("sb-1").run("true")
    assert (caught.value.status, caught.value.detail, caught.value.hint) == (503, "no", "try")
    assert len(server.requests) == 2


def test_streamed_content_is_sent_once() -> None:
    server = Server(lambda n, _: httpx.Response(200, json=SESSION) if n == 1 else refusal(429, "resource_exhausted"))
    with server.client() as client, pytest.raises(miren_runtime.ResourceExhausted):
        client.get("sb-1").files.write("file", iter([b"part"]))
    assert len(server.requests) == 2


def test_errors_without_problem_are_errors() -> None:
    server = Server(lambda n, _: httpx.Response(502, text="a proxy's page"))
    with server.client() as client, pytest.raises(miren_runtime.ProblemError) as caught:
        client.get("sb-1")
    assert (caught.value.status, caught.value.error_class) == (502, "")


def test_unanswered_request_is_connection_failed() -> None:
    def answer(n: int, request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("late", request=request)

    server = Server(answer)
    with server.client() as client, pytest.raises(miren_runtime.ConnectionFailed):
        client.get("sb-1")
    assert len(server.requests) == 1


def test_end_of_a_sandbox_that_is_gone() -> None:
    server = Server(lambda n, _: httpx.Response(200, json=SESSION) if n == 1 else refusal(404, "not_found"))
    with server.client() as client, client.get("sb-1"):
        pass
    assert server.requests[1].method == "DELETE"


def test_address_and_key_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIREN_API_URL", raising=False)
    with pytest.raises(miren_runtime.MirenError, match="MIREN_API_URL"):
        miren_runtime.Client()


EXECUTION = {"id": "exec-1", "state": "running", "attempt": 1, "created_at": "2026-01-01T00:00:00Z"}


def stream(*events: tuple[str, str, object]) -> httpx.Response:
    text = "".join(f"id: {i}\nevent: {name}\ndata: {json.dumps(data)}\n\n" for i, name, data in events)
    return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, text=text)


def break_once(n: int, request: httpx.Request) -> httpx.Response:
    if n == 1:
        return stream(("1-0", "output", {"stream": "stdout", "data": "a", "offset": 0}), ("1-0", "new-event", {}))
    return stream(
        ("2-0", "output", {"stream": "stdout", "data": "b", "offset": 1}),
        ("2-0", "end", {**EXECUTION, "state": "ended"}),
    )


def test_broken_stream_is_continued() -> None:
    server = Server(break_once)
    with server.client() as client:
        *output, end = client.follow("exec-1")
    assert [event.data for event in output if isinstance(event, models.OutputEvent)] == ["a", "b"]
    assert isinstance(end, models.Execution) and end.state == "ended"
    assert [request.headers.get("Last-Event-ID") for request in server.requests] == [None, "1-0"]


def test_error_in_a_stream_is_raised() -> None:
    problem = {"status": 404, "class": "not_found", "detail": "no"}
    server = Server(lambda n, _: stream(("", "error", problem)))
    with server.client() as client, pytest.raises(miren_runtime.NotFound):
        list(client.follow("exec-1"))


def test_printed_client_has_no_key() -> None:
    client = Server(lambda n, request: httpx.Response(200, json=SESSION)).client()
    client.get("sb-1")
    assert "key" not in repr(client.rest) + repr(vars(client))
