from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.log_page import LogPage
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    id: str,
    *,
    after: int | Unset = UNSET,
    tail: int | Unset = UNSET,
    limit: int | Unset = 1000,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["after"] = after

    params["tail"] = tail

    params["limit"] = limit

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/containers/{id}/logs".format(
            id=quote(str(id), safe=""),
        ),
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> LogPage | Problem:
    if response.status_code == 200:
        response_200 = LogPage.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[LogPage | Problem]:
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
    after: int | Unset = UNSET,
    tail: int | Unset = UNSET,
    limit: int | Unset = 1000,
) -> Response[LogPage | Problem]:
    """Get what the main process of a container printed

    Args:
        id (str): Id of the container.
        after (int | Unset): Only lines after this position, the next of an answer before.
        tail (int | Unset): Only so many last lines; 0: all.
        limit (int | Unset): Most lines of the answer. Default: 1000.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[LogPage | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        after=after,
        tail=tail,
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
    after: int | Unset = UNSET,
    tail: int | Unset = UNSET,
    limit: int | Unset = 1000,
) -> LogPage | Problem | None:
    """Get what the main process of a container printed

    Args:
        id (str): Id of the container.
        after (int | Unset): Only lines after this position, the next of an answer before.
        tail (int | Unset): Only so many last lines; 0: all.
        limit (int | Unset): Most lines of the answer. Default: 1000.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        LogPage | Problem
    """

    return sync_detailed(
        id=id,
        client=client,
        after=after,
        tail=tail,
        limit=limit,
    ).parsed


async def asyncio_detailed(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    after: int | Unset = UNSET,
    tail: int | Unset = UNSET,
    limit: int | Unset = 1000,
) -> Response[LogPage | Problem]:
    """Get what the main process of a container printed

    Args:
        id (str): Id of the container.
        after (int | Unset): Only lines after this position, the next of an answer before.
        tail (int | Unset): Only so many last lines; 0: all.
        limit (int | Unset): Most lines of the answer. Default: 1000.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[LogPage | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        after=after,
        tail=tail,
        limit=limit,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    after: int | Unset = UNSET,
    tail: int | Unset = UNSET,
    limit: int | Unset = 1000,
) -> LogPage | Problem | None:
    """Get what the main process of a container printed

    Args:
        id (str): Id of the container.
        after (int | Unset): Only lines after this position, the next of an answer before.
        tail (int | Unset): Only so many last lines; 0: all.
        limit (int | Unset): Most lines of the answer. Default: 1000.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        LogPage | Problem
    """

    return (
        await asyncio_detailed(
            id=id,
            client=client,
            after=after,
            tail=tail,
            limit=limit,
        )
    ).parsed
