from __future__ import annotations

import builtins
from collections.abc import AsyncIterable
from typing import Any
from urllib.parse import quote

import httpx

from .._workspace import Result, UploadedFile, WorkspaceSession, file_of, result_of, session_of
from ..errors import NotFound
from .client import AsyncClient

LONGEST_TIMEOUT = 3600
"""Longest time, in seconds, that a server gives to a program."""


class AsyncWorkspace:
    """The sessions of a project, by ids of the caller: 1 to 128 of letters, digits, ``.``, ``_`` and ``-``."""

    def __init__(self, client: AsyncClient):
        """
        Args:
            client: What sends the requests. It stays the caller's to close.
        """
        self._client = client

    async def _send(self, method: str, call: str, *names: str, takes: float = 0, **request: Any) -> httpx.Response:
        path = "/".join([call, *(quote(name, safe="") for name in names)])
        url = f"{self._client.url}/workspace/se/{path}"
        return await self._client.send(method=method, url=url, takes=takes, **request)

    async def session(self, session_id: str) -> WorkspaceSession:
        """Create a session and wait until it runs.

        Raises:
            AlreadyExists: There is a session with this id. One that has ended is replaced.
        """
        return session_of((await self._send("POST", "session", session_id, takes=60)).json())

    async def list(self) -> builtins.list[WorkspaceSession]:
        """Return the sessions of the project."""
        return [session_of(value) for value in (await self._send("GET", "list")).json()["sessions"]]

    async def delete(self, session_id: str) -> None:
        """Delete a session; nothing happens if it is gone."""
        try:
            await self._send("DELETE", "session", session_id, takes=60)
        except NotFound:
            pass

    async def execute_code(
        self,
        session_id: str,
        code: str,
        language: str = "python",
        *,
        timeout: float | None = None,
        env: dict[str, str] | None = None,
    ) -> Result:
        """Run code in a session, wait for its end, and return what it left.

        It is not repeated when the connection fails: it may have run. It is cancelled if this call is.

        Args:
            session_id: Session.
            code: Code.
            language: Language.
            timeout: Seconds after which it is ended, with exit code 124; default: the longest time of the server.
            env: Environment variables.

        Raises:
            NotFound: There is no such session.
            FailedPrecondition: It did not run to its end.
        """
        return await self._execute("execute_code", session_id, {"code": code, "language": language}, timeout, env)

    async def execute(
        self,
        session_id: str,
        command: str | builtins.list[str],
        *,
        timeout: float | None = None,
        env: dict[str, str] | None = None,
    ) -> Result:
        """Run a command in a session as ``execute_code`` does; a string is run by a shell."""
        return await self._execute("execute", session_id, {"command": command}, timeout, env)

    async def _execute(
        self, call: str, session_id: str, body: dict[str, Any], timeout: float | None, env: dict[str, str] | None
    ) -> Result:
        if timeout is not None:
            body["timeout"] = timeout
        if env:
            body["env"] = env
        # The server may take a minute besides the program.
        takes = 60 + (LONGEST_TIMEOUT if timeout is None else timeout)
        return result_of((await self._send("POST", call, session_id, takes=takes, json=body)).json())

    async def upload(self, session_id: str, filename: str, content: str | bytes | AsyncIterable[bytes]) -> UploadedFile:
        """Write a file into the working directory of a session.

        Args:
            session_id: Session.
            filename: Name of the file, without folders.
            content: Content; one that comes in parts is sent once.
        """
        response = await self._send(
            "POST",
            "upload",
            session_id,
            takes=300,
            params={"filename": filename},
            content=content,
            headers={"Content-Type": "application/octet-stream"},
        )
        return file_of(response.json()["files"][0])

    async def download(self, session_id: str, filename: str) -> bytes:
        """Return the content of a file in the working directory of a session, or below it."""
        return (await self._send("GET", "download", session_id, *filename.split("/"), takes=300)).content
