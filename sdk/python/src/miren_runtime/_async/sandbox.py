from __future__ import annotations

import builtins
import uuid
from collections.abc import AsyncIterable, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from ..errors import NotFound
from ..events import Event
from ..options import ExecuteOptions, RunOptions
from ..rest.api.executions import execute_in_session
from ..rest.api.files import list_files, read_file, remove_file, write_file
from ..rest.api.sessions import (
    delete_session,
    extend_session,
    get_session,
    pause_session,
    resume_session,
    run_command,
)
from ..rest.models import (
    Command,
    CommandResult,
    Execute,
    Execution,
    ExecutionResult,
    ExtendInputBody,
    FileInfo,
    Session,
)
from ..rest.types import File

if TYPE_CHECKING:
    from .client import AsyncClient


class AsyncSandbox:
    """A sandbox: a session of mode persistent. As a context manager it is ended with its block."""

    def __init__(self, client: AsyncClient, session: Session):
        self._client = client
        self.session = session
        """What the server last said of it."""
        self.files = AsyncFiles(client, session.id)

    @property
    def id(self) -> str:
        return self.session.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.session.state}>"

    async def refresh(self) -> Session:
        """Ask the server for its state."""
        self.session = await self._client.call(get_session, id=self.id)
        return self.session

    async def run(self, command: str | list[str], **options: Unpack[RunOptions]) -> CommandResult:
        """Run a command and return its output; a string is run by a shell.

        It is not repeated when the connection fails: it may have run.
        """
        argv = ["sh", "-c", command] if isinstance(command, str) else command
        result: CommandResult = await self._client.call(
            run_command,
            takes=options.get("timeout_seconds", 300),
            id=self.id,
            body=Command.from_dict({"command": argv, **options}),
        )
        return result

    async def execute(
        self,
        code: str,
        language: str = "python",
        *,
        idempotency_key: str | None = None,
        **options: Unpack[ExecuteOptions],
    ) -> ExecutionResult:
        """Execute code, wait for its end, and return what it left."""
        body = Execute.from_dict({"code": code, "language": language, **options})
        return await self._client.finish(
            execute_in_session, id=self.id, body=body, idempotency_key=idempotency_key or str(uuid.uuid4())
        )

    async def stream(
        self,
        code: str,
        language: str = "python",
        *,
        idempotency_key: str | None = None,
        **options: Unpack[ExecuteOptions],
    ) -> AsyncIterator[Event]:
        """Execute code and yield its output as it comes; the last event is the ended execution."""
        execution: Execution = await self._client.call(
            execute_in_session,
            id=self.id,
            body=Execute.from_dict({"code": code, "language": language, **options}),
            idempotency_key=idempotency_key or str(uuid.uuid4()),
        )
        async for event in self._client.follow(execution.id):
            yield event

    async def stream_command(self, command: str | list[str], **options: Unpack[RunOptions]) -> AsyncIterator[Event]:
        """Run a command in the background and yield its output as it comes; the last event has its exit code."""
        options["background"] = True
        started = await self.run(command, **options)
        async for event in self._client.events(f"/sessions/{self.id}/commands/{started.id}/stream"):
            yield event

    async def extend(self, ttl_seconds: int | None = None) -> Session:
        """Let it end this long after now; None: never."""
        body = ExtendInputBody() if ttl_seconds is None else ExtendInputBody(ttl_seconds=ttl_seconds)
        self.session = await self._client.call(extend_session, id=self.id, body=body)
        return self.session

    async def pause(self) -> Session:
        """Save it and end its processes, which ``resume`` continues."""
        self.session = await self._client.call(pause_session, takes=300, id=self.id)
        return self.session

    async def resume(self) -> Session:
        """Continue it."""
        self.session = await self._client.call(resume_session, takes=300, id=self.id)
        return self.session

    async def end(self) -> None:
        """Delete it; nothing happens if it is gone."""
        try:
            await self._client.call(delete_session, takes=60, id=self.id)
        except NotFound:
            pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()


class AsyncFiles:
    """The files of a sandbox. A relative path is below its working directory."""

    def __init__(self, client: AsyncClient, session_id: str):
        self._client = client
        self._id = session_id

    async def read(self, path: str) -> bytes:
        """Return the content of a file."""
        content: bytes = (await self._client.call(read_file, takes=300, id=self._id, path=path)).payload.read()
        return content

    async def read_text(self, path: str) -> str:
        """Return the content of a file in UTF-8."""
        return (await self.read(path)).decode()

    async def write(
        self, path: str, content: str | bytes | AsyncIterable[bytes], *, mode: int | None = None, parents: bool = False
    ) -> FileInfo:
        """Write a file, which appears when it is complete.

        Args:
            path: Path.
            content: Content; one that comes in parts is not sent again if the connection fails.
            mode: Permission bits of a new file; default: 0o644.
            parents: Make missing directories.
        """
        file: Any = File(payload=content)  # type: ignore[arg-type]
        info: FileInfo = await self._client.call(
            write_file, takes=300, id=self._id, body=file, path=path, mode=mode, parents=parents
        )
        return info

    async def list(self, path: str = ".") -> builtins.list[FileInfo]:
        """Return the entries of a directory, by name."""
        files: builtins.list[FileInfo] = []
        while True:
            after = files[-1].name if files else None
            page = await self._client.call(list_files, id=self._id, path=path, after=after)
            files += page.files
            if not page.more or not page.files:
                return files

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or directory."""
        await self._client.call(remove_file, id=self._id, path=path, recursive=recursive)
