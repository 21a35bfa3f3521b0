from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.file_info import FileInfo
from ...models.problem import Problem
from ...types import UNSET, File, Response, Unset


def _get_kwargs(
    id: str,
    *,
    body: File | Unset = UNSET,
    path: str,
    user: str | Unset = UNSET,
    mode: int | Unset = UNSET,
    parents: bool | Unset = UNSET,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}

    params: dict[str, Any] = {}

    params["path"] = path

    params["user"] = user

    params["mode"] = mode

    params["parents"] = parents

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "put",
        "url": "/sessions/{id}/files/content".format(
            id=quote(str(id), safe=""),
        ),
        "params": params,
    }

    if not isinstance(body, Unset):
        _kwargs["content"] = body.payload
    headers["Content-Type"] = "application/octet-stream"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> FileInfo | Problem:
    if response.status_code == 200:
        response_200 = FileInfo.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[FileInfo | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    body: File | Unset = UNSET,
    path: str,
    user: str | Unset = UNSET,
    mode: int | Unset = UNSET,
    parents: bool | Unset = UNSET,
) -> Response[FileInfo | Problem]:
    """Write a file of a session

    Args:
        id (str): Id of the session.
        path (str): Path; a relative one is below the working directory.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        mode (int | Unset): Permission bits of a new file, in decimal; 0: 0644.
        parents (bool | Unset): Missing directories are made.
        body (File | Unset):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[FileInfo | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        body=body,
        path=path,
        user=user,
        mode=mode,
        parents=parents,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    body: File | Unset = UNSET,
    path: str,
    user: str | Unset = UNSET,
    mode: int | Unset = UNSET,
    parents: bool | Unset = UNSET,
) -> FileInfo | Problem | None:
    """Write a file of a session

    Args:
        id (str): Id of the session.
        path (str): Path; a relative one is below the working directory.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        mode (int | Unset): Permission bits of a new file, in decimal; 0: 0644.
        parents (bool | Unset): Missing directories are made.
        body (File | Unset):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        FileInfo | Problem
    """

    return sync_detailed(
        id=id,
        client=client,
        body=body,
        path=path,
        user=user,
        mode=mode,
        parents=parents,
    ).parsed


async def asyncio_detailed(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    body: File | Unset = UNSET,
    path: str,
    user: str | Unset = UNSET,
    mode: int | Unset = UNSET,
    parents: bool | Unset = UNSET,
) -> Response[FileInfo | Problem]:
    """Write a file of a session

    Args:
        id (str): Id of the session.
        path (str): Path; a relative one is below the working directory.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        mode (int | Unset): Permission bits of a new file, in decimal; 0: 0644.
        parents (bool | Unset): Missing directories are made.
        body (File | Unset):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[FileInfo | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        body=body,
        path=path,
        user=user,
        mode=mode,
        parents=parents,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    body: File | Unset = UNSET,
    path: str,
    user: str | Unset = UNSET,
    mode: int | Unset = UNSET,
    parents: bool | Unset = UNSET,
) -> FileInfo | Problem | None:
    """Write a file of a session

    Args:
        id (str): Id of the session.
        path (str): Path; a relative one is below the working directory.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        mode (int | Unset): Permission bits of a new file, in decimal; 0: 0644.
        parents (bool | Unset): Missing directories are made.
        body (File | Unset):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        FileInfo | Problem
    """

    return (
        await asyncio_detailed(
            id=id,
            client=client,
            body=body,
            path=path,
            user=user,
            mode=mode,
            parents=parents,
        )
    ).parsed
