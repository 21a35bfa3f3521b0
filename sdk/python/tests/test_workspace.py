"""The client of the workspace API, with a server that is a function."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import anyio
import httpx
import pytest

import miren_runtime
from miren_runtime.workspace import AsyncWorkspace, Metrics, Result, UploadedFile, Workspace, WorkspaceSession

SESSION = {
    "session_id": "Data_1",
    "sandbox_id": "sb-1",
    "state": "running",
    "created_at": "2026-01-01T00:00:00.123456789Z",
    "field-of-a-newer-server": 1,
}
METRICS = {"queue_ms": 1, "setup_ms": 2, "wall_ms": 3, "cpu_ms": None, "memory_bytes": 4}
RESULT = {
    "session_id": "Data_1",
    "exit_code": 3,
    "stdout": "out",
    "stderr": "err",
    "result": None,
    "outcome": "failed",
    "metrics": METRICS,
}


class Server:
    """Answers as the server does and keeps the requests."""

    def __init__(self, refusal: tuple[int, str] | None = None):
        self.requests: list[httpx.Request] = []
        self._refusal = refusal

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._answer(request)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return self._answer(request)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self._refusal:
            status, error_class = self._refusal
            return httpx.Response(
                status, headers={"Retry-After": "0"}, json={"status": status, "class": error_class, "detail": "no"}
            )
        match request.url.path.removeprefix("/workspace/se/").split("/")[0]:
            case "session":
                return httpx.Response(201, json=SESSION) if request.method == "POST" else httpx.Response(204)
            case "list":
                return httpx.Response(200, json={"sessions": [SESSION]})
            case "upload":
                file = {"filename": request.url.params["filename"], "size": len(request.content)}
                return httpx.Response(200, json={"session_id": "Data_1", "files": [file]})
            case "download":
                return httpx.Response(200, content=b"\x00content")
        return httpx.Response(200, json=RESULT)

    def client(self) -> miren_runtime.Client:
        return miren_runtime.Client("http://server/", "key", transport=httpx.MockTransport(self))


def test_calls_of_a_session() -> None:
    server = Server()
    with server.client() as client:
        workspace = Workspace(client)
        session = workspace.session("Data_1")
        assert session == WorkspaceSession("Data_1", "sb-1", "running", datetime(2026, 1, 1, 0, 0, 0, 123456, UTC))
        assert workspace.list() == [session]
        result = workspace.execute_code("Data_1", "1", timeout=1.5, env={"A": "b"})
        assert result == Result("Data_1", 3, "out", "err", None, "failed", Metrics(1, 2, 3, None, 4))
        assert workspace.execute("Data_1", ["true"]).exit_code == 3
        assert workspace.upload("Data_1", "a b.csv", b"1,2") == UploadedFile("a b.csv", 3)
        assert workspace.download("Data_1", "out/a b?.csv") == b"\x00content"
        workspace.delete("Data_1")
    assert {request.headers["Authorization"] for request in server.requests} == {"Bearer key"}
    assert [
        f"{request.method} {request.url}".replace("http://server/workspace/se/", "") for request in server.requests
    ] == [
        "POST session/Data_1",
        "GET list",
        "POST execute_code/Data_1",
        "POST execute/Data_1",
        "POST upload/Data_1?filename=a+b.csv",
        "GET download/Data_1/out/a%20b%3F.csv",
        "DELETE session/Data_1",
    ]
    code, command = (json.loads(request.content) for request in server.requests[2:4])
    assert code == {"code": "1", "language": "python", "timeout": 1.5, "env": {"A": "b"}}
    assert command == {"command": ["true"]}


def test_async_calls() -> None:
    server = Server()

    async def parts() -> AsyncIterator[bytes]:
        yield b"1,"
        yield b"2"

    async def main() -> None:
        transport = httpx.MockTransport(server.answer)
        async with miren_runtime.AsyncClient("http://server/api/v1", "key", transport=transport) as client:
            workspace = AsyncWorkspace(client)
            assert (await workspace.session("Data_1")).sandbox_id == "sb-1"
            assert (await workspace.execute("Data_1", "exit 3")).outcome == "failed"
            assert (await workspace.upload("Data_1", "a", parts())).size == 3
            assert len(await workspace.list()) == 1
            await workspace.delete("Data_1")

    anyio.run(main)
    assert server.requests[0].url == "http://server/workspace/se/session/Data_1"


def test_errors_are_typed() -> None:
    with Server((409, "already_exists")).client() as client, pytest.raises(miren_runtime.AlreadyExists):
        Workspace(client).session("Data_1")
    with Server((404, "not_found")).client() as client, pytest.raises(miren_runtime.NotFound):
        Workspace(client).execute_code("Data_1", "1")
    with Server((404, "not_found")).client() as client:
        Workspace(client).delete("Data_1")


def test_code_that_may_have_run_is_not_repeated() -> None:
    server = Server((503, "unavailable"))
    with server.client() as client, pytest.raises(miren_runtime.Unavailable):
        Workspace(client).execute_code("Data_1", "1")
    assert len(server.requests) == 1
