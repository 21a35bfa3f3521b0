from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.file_page import FilePage
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    id: str,
    *,
    path: str | Unset = ".",
    user: str | Unset = UNSET,
    after: str | Unset = UNSET,
    limit: int | Unset = 1024,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["path"] = path

    params["user"] = user

    params["after"] = after

    params["limit"] = limit

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/sessions/{id}/files".format(
            id=quote(str(id), safe=""),
        ),
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> FilePage | Problem:
    if response.status_code == 200:
        response_200 = FilePage.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[FilePage | Problem]:
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
    path: str | Unset = ".",
    user: str | Unset = UNSET,
    after: str | Unset = UNSET,
    limit: int | Unset = 1024,
) -> Response[FilePage | Problem]:
    """List a directory of a session

    Args:
        id (str): Id of the session.
        path (str | Unset): Directory; a relative path is below the working directory. Default:
            '.'.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        after (str | Unset): Only names after this one.
        limit (int | Unset): Most entries of a page. Default: 1024.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[FilePage | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        path=path,
        user=user,
        after=after,
        limit=limit,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    path: str | Unset = ".",
    user: str | Unset = UNSET,
    after: str | Unset = UNSET,
    limit: int | Unset = 1024,
) -> FilePage | Problem | None:
    """List a directory of a session

    Args:
        id (str): Id of the session.
        path (str | Unset): Directory; a relative path is below the working directory. Default:
            '.'.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        after (str | Unset): Only names after this one.
        limit (int | Unset): Most entries of a page. Default: 1024.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        FilePage | Problem
    """

    return sync_detailed(
        id=id,
        client=client,
        path=path,
        user=user,
        after=after,
        limit=limit,
    ).parsed


async def asyncio_detailed(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    path: str | Unset = ".",
    user: str | Unset = UNSET,
    after: str | Unset = UNSET,
    limit: int | Unset = 1024,
) -> Response[FilePage | Problem]:
    """List a directory of a session

    Args:
        id (str): Id of the session.
        path (str | Unset): Directory; a relative path is below the working directory. Default:
            '.'.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        after (str | Unset): Only names after this one.
        limit (int | Unset): Most entries of a page. Default: 1024.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[FilePage | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        path=path,
        user=user,
        after=after,
        limit=limit,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    path: str | Unset = ".",
    user: str | Unset = UNSET,
    after: str | Unset = UNSET,
    limit: int | Unset = 1024,
) -> FilePage | Problem | None:
    """List a directory of a session

    Args:
        id (str): Id of the session.
        path (str | Unset): Directory; a relative path is below the working directory. Default:
            '.'.
        user (str | Unset): User whose permissions hold; absent: that of the session.
        after (str | Unset): Only names after this one.
        limit (int | Unset): Most entries of a page. Default: 1024.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        FilePage | Problem
    """

    return (
        await asyncio_detailed(
            id=id,
            client=client,
            path=path,
            user=user,
            after=after,
            limit=limit,
        )
    ).parsed
