from __future__ import annotations

import os
import ssl
import uuid
from collections.abc import AsyncIterator
from types import ModuleType, TracebackType
from typing import Any, Self, Unpack

import anyio
import httpx
from httpx_sse import EventSource

from .. import _retry
from .._rest import RestClient
from .._version import __version__
from ..errors import ConnectionFailed, MirenError, problem_of
from ..events import Event, event_of
from ..options import CreateOptions, SubmitOptions
from ..rest.api.executions import get_execution_result, submit_execution
from ..rest.api.sessions import create_session, get_session, list_sessions
from ..rest.api.templates import list_templates
from ..rest.models import CreateSession, Execution, ExecutionResult, Session, Submission, Template
from .sandbox import AsyncSandbox

LONGEST_WAIT = 60
"""Longest time, in seconds, that one request asks the server to wait for an end."""


class AsyncTransport(httpx.AsyncBaseTransport):
    """Repeats requests that the server had no room for, and those that got no answer and can be repeated."""

    def __init__(self, inner: httpx.AsyncBaseTransport, retries: int):
        self._inner = inner
        self._retries = retries

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        attempts = _retry.attempts(request, self._retries)
        attempt = 0
        while True:
            last = attempt + 1 >= attempts
            try:
                response = await self._inner.handle_async_request(request)
            except httpx.TransportError as error:
                if last or not _retry.after_failure(request, error):
                    raise
                delay = _retry.delay(attempt)
            else:
                if last or not _retry.after_answer(request, response):
                    return response
                delay = _retry.delay(attempt, response)
                await response.aclose()
            await anyio.sleep(delay)
            attempt += 1

    async def aclose(self) -> None:
        await self._inner.aclose()


async def raise_problem(response: httpx.Response) -> None:
    if response.status_code >= 400:
        await response.aread()
        raise problem_of(response)


class AsyncClient:
    """A connection to a server. It can be shared, and is closed by ``aclose`` or as a context manager."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30,
        max_retries: int = 4,
        verify: bool | ssl.SSLContext = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        """
        Args:
            url: Address of the server's API, such as http://127.0.0.1:7070; default: MIREN_API_URL.
            api_key: Key that `r key create` printed; default: MIREN_API_KEY.
            timeout: Seconds without an answer, beyond the time that the request itself may take.
            max_retries: How often a request is repeated, see docs/sdk.md.
            verify: False, or a context with the server's authority: for HTTPS with a certificate of its own.
            transport: What sends requests; default: HTTP.
        """
        url = url or os.environ.get("MIREN_API_URL")
        api_key = api_key or os.environ.get("MIREN_API_KEY")
        if not url or not api_key:
            raise MirenError("url and api_key are needed: pass them, or set MIREN_API_URL and MIREN_API_KEY")
        self._timeout = timeout
        self._max_retries = max_retries
        self.url = url.rstrip("/").removesuffix("/api/v1")
        """Address of the server's API, without the path of an API."""
        self.rest = RestClient(
            base_url=self.url + "/api/v1",
            token=api_key,
            timeout=self._limit(300),
            headers={"User-Agent": f"miren-runtime-python/{__version__}"},
            httpx_args={
                "transport": AsyncTransport(transport or httpx.AsyncHTTPTransport(verify=verify), max_retries),
                "event_hooks": {"response": [raise_problem]},
            },
        )
        """For the functions of ``miren_runtime.rest.api``."""

    def _limit(self, takes: float) -> httpx.Timeout:
        return httpx.Timeout(self._timeout + takes, connect=min(self._timeout, 10))

    async def call(self, operation: ModuleType, *, takes: float = 0, **params: Any) -> Any:
        """Call an operation, a module of ``miren_runtime.rest.api``.

        Args:
            operation: The module.
            takes: Seconds that the operation itself may take.
            params: Parameters of the functions of the module.
        """
        request = operation._get_kwargs(**{name: value for name, value in params.items() if value is not None})
        return operation._parse_response(client=self.rest, response=await self.send(takes=takes, **request))

    async def send(self, *, takes: float = 0, **request: Any) -> httpx.Response:
        """Send a request of httpx and return its answer, which is no problem.

        Args:
            takes: Seconds that the request itself may take.
            request: Arguments of ``httpx.AsyncClient.request``, without the time limit.
        """
        try:
            return await self.rest.get_async_httpx_client().request(**request, timeout=self._limit(takes))
        except httpx.TransportError as error:
            raise ConnectionFailed(f"{type(error).__name__}: {error}") from error

    async def create(
        self,
        template: str | None = None,
        *,
        wait: int = 60,
        idempotency_key: str | None = None,
        **options: Unpack[CreateOptions],
    ) -> AsyncSandbox:
        """Create a sandbox and wait until it runs.

        Args:
            template: What it is made of: NAME, NAME:TAG or NAME:NUMBER.
            wait: Longest time until it runs, in seconds; 0: it is returned at once.
            idempotency_key: Another call with this key returns the same sandbox.
            options: Fields of the request.
        """
        body = CreateSession.from_dict({"template": template, **options} if template else options)
        session: Session = await self.call(
            create_session, takes=wait, body=body, wait=wait, idempotency_key=idempotency_key or str(uuid.uuid4())
        )
        return AsyncSandbox(self, session)

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """Return a sandbox that exists."""
        return AsyncSandbox(self, await self.call(get_session, id=sandbox_id))

    async def sandboxes(
        self, *, state: str | None = None, name: str | None = None, labels: dict[str, str] | None = None
    ) -> AsyncIterator[AsyncSandbox]:
        """Yield the sandboxes of the project."""
        label = [f"{key}={value}" for key, value in (labels or {}).items()] or None
        cursor = None
        while True:
            page = await self.call(list_sessions, state=state, name=name, label=label, cursor=cursor)
            for session in page.sessions:
                yield AsyncSandbox(self, session)
            cursor = page.next_cursor
            if not cursor:
                return

    async def templates(self) -> list[Template]:
        """Return the templates that the project can use."""
        found: list[Template] = (await self.call(list_templates)).templates
        return found

    async def execute(
        self,
        code: str,
        language: str = "python",
        *,
        idempotency_key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> ExecutionResult:
        """Execute code in a sandbox of its own, wait for its end, and return what it left."""
        body = Submission.from_dict({"code": code, "language": language, **options})
        return await self.finish(submit_execution, body=body, idempotency_key=idempotency_key or str(uuid.uuid4()))

    async def finish(self, operation: ModuleType, **params: Any) -> ExecutionResult:
        """Submit an execution, wait for its end, and return what it left.

        A submission that is repeated with its key is the same execution, so waiting is submitting again.
        """
        while True:
            execution: Execution = await self.call(operation, takes=LONGEST_WAIT, wait=LONGEST_WAIT, **params)
            if execution.state == "ended":
                result: ExecutionResult = await self.call(get_execution_result, id=execution.id)
                return result

    async def follow(self, execution_id: str) -> AsyncIterator[Event]:
        """Yield the events of an execution until its end, from its begin."""
        async for event in self.events(f"/executions/{execution_id}/stream"):
            yield event

    async def events(self, path: str) -> AsyncIterator[Event]:
        """Yield the events of a stream until its end. A stream that breaks is continued after its last event."""
        http = self.rest.get_async_httpx_client()
        last, failures = "", 0
        while True:
            headers = {"Accept": "text/event-stream"}
            if last:
                headers["Last-Event-ID"] = last
            try:
                # The server sends a heartbeat every 15 s.
                async with http.stream("GET", path, headers=headers, timeout=self._limit(0)) as response:
                    async for message in EventSource(response).aiter_sse():
                        if message.id and message.id != last:
                            last, failures = message.id, 0
                        event = event_of(message.event, message.data)
                        if event is not None:
                            yield event
                        if message.event == "end":
                            return
            except httpx.TransportError as error:
                if failures >= self._max_retries:
                    raise ConnectionFailed(f"{type(error).__name__}: {error}") from error
            if failures >= self._max_retries:
                raise ConnectionFailed("the stream ended before its last event")
            await anyio.sleep(_retry.delay(failures))
            failures += 1

    async def aclose(self) -> None:
        await self.rest.get_async_httpx_client().aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
