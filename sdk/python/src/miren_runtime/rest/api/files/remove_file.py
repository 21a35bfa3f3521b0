from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    id: str,
    *,
    path: str,
    user: str | Unset = UNSET,
    recursive: bool | Unset = UNSET,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["path"] = path

    params["user"] = user

    params["recursive"] = recursive

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "delete",
        "url": "/sessions/{id}/files".format(
            id=quote(str(id), safe=""),
        ),
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Any | Problem:
    if response.status_code == 204:
        response_204 = cast(Any, None)
        return response_204

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[Any | Problem]:
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
    path: str,
    user: str | Unset = UNSET,
    recursive: bool | Unset = UNSET,
) -> Response[Any | Problem]:
    """Remove a file or directory of a session

    Args:
        id (str): Id of the session.
        path (str): Path; a relative one is below the working directory.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        recursive (bool | Unset): A directory is removed with everything in it.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Any | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        path=path,
        user=user,
        recursive=recursive,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    path: str,
    user: str | Unset = UNSET,
    recursive: bool | Unset = UNSET,
) -> Any | Problem | None:
    """Remove a file or directory of a session

    Args:
        id (str): Id of the session.
        path (str): Path; a relative one is below the working directory.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        recursive (bool | Unset): A directory is removed with everything in it.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Any | Problem
    """

    return sync_detailed(
        id=id,
        client=client,
        path=path,
        user=user,
        recursive=recursive,
    ).parsed


async def asyncio_detailed(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    path: str,
    user: str | Unset = UNSET,
    recursive: bool | Unset = UNSET,
) -> Response[Any | Problem]:
    """Remove a file or directory of a session

    Args:
        id (str): Id of the session.
        path (str): Path; a relative one is below the working directory.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        recursive (bool | Unset): A directory is removed with everything in it.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Any | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        path=path,
        user=user,
        recursive=recursive,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    path: str,
    user: str | Unset = UNSET,
    recursive: bool | Unset = UNSET,
) -> Any | Problem | None:
    """Remove a file or directory of a session

    Args:
        id (str): Id of the session.
        path (str): Path; a relative one is below the working directory.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        recursive (bool | Unset): A directory is removed with everything in it.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Any | Problem
    """

    return (
        await asyncio_detailed(
            id=id,
            client=client,
            path=path,
            user=user,
            recursive=recursive,
        )
    ).parsed
