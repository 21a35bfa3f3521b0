from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.build_log import BuildLog
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    name: str,
    *,
    after: int | Unset = UNSET,
    limit: int | Unset = 1000,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["after"] = after

    params["limit"] = limit

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/templates/{name}/logs".format(
            name=quote(str(name), safe=""),
        ),
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> BuildLog | Problem:
    if response.status_code == 200:
        response_200 = BuildLog.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[BuildLog | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    name: str,
    *,
    client: AuthenticatedClient | Client,
    after: int | Unset = UNSET,
    limit: int | Unset = 1000,
) -> Response[BuildLog | Problem]:
    """Get the log of the build of a version

    Args:
        name (str): NAME, NAME:TAG or NAME:NUMBER.
        after (int | Unset): Only lines after this position, the next of an answer before.
        limit (int | Unset): Most lines of the answer. Default: 1000.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[BuildLog | Problem]
    """

    kwargs = _get_kwargs(
        name=name,
        after=after,
        limit=limit,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    name: str,
    *,
    client: AuthenticatedClient | Client,
    after: int | Unset = UNSET,
    limit: int | Unset = 1000,
) -> BuildLog | Problem | None:
    """Get the log of the build of a version

    Args:
        name (str): NAME, NAME:TAG or NAME:NUMBER.
        after (int | Unset): Only lines after this position, the next of an answer before.
        limit (int | Unset): Most lines of the answer. Default: 1000.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        BuildLog | Problem
    """

    return sync_detailed(
        name=name,
        client=client,
        after=after,
        limit=limit,
    ).parsed


async def asyncio_detailed(
    name: str,
    *,
    client: AuthenticatedClient | Client,
    after: int | Unset = UNSET,
    limit: int | Unset = 1000,
) -> Response[BuildLog | Problem]:
    """Get the log of the build of a version

    Args:
        name (str): NAME, NAME:TAG or NAME:NUMBER.
        after (int | Unset): Only lines after this position, the next of an answer before.
        limit (int | Unset): Most lines of the answer. Default: 1000.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[BuildLog | Problem]
    """

    kwargs = _get_kwargs(
        name=name,
        after=after,
        limit=limit,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    name: str,
    *,
    client: AuthenticatedClient | Client,
    after: int | Unset = UNSET,
    limit: int | Unset = 1000,
) -> BuildLog | Problem | None:
    """Get the log of the build of a version

    Args:
        name (str): NAME, NAME:TAG or NAME:NUMBER.
        after (int | Unset): Only lines after this position, the next of an answer before.
        limit (int | Unset): Most lines of the answer. Default: 1000.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        BuildLog | Problem
    """

    return (
        await asyncio_detailed(
            name=name,
            client=client,
            after=after,
            limit=limit,
        )
    ).parsed
