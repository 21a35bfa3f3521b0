from http import HTTPStatus
from typing import Any

import httpx

from ...client import AuthenticatedClient, Client
from ...models.entity_page import EntityPage
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    kind: str,
    name: str | Unset = UNSET,
    limit: int | Unset = 200,
    cursor: str | Unset = UNSET,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["kind"] = kind

    params["name"] = name

    params["limit"] = limit

    params["cursor"] = cursor

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/entities",
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> EntityPage | Problem:
    if response.status_code == 200:
        response_200 = EntityPage.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[EntityPage | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient | Client,
    kind: str,
    name: str | Unset = UNSET,
    limit: int | Unset = 200,
    cursor: str | Unset = UNSET,
) -> Response[EntityPage | Problem]:
    """List the entities of a kind

    Args:
        kind (str): Kind.
        name (str | Unset): Only the entity with this name.
        limit (int | Unset): Most entities of a page. A page may have fewer although others
            follow. Default: 200.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[EntityPage | Problem]
    """

    kwargs = _get_kwargs(
        kind=kind,
        name=name,
        limit=limit,
        cursor=cursor,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    *,
    client: AuthenticatedClient | Client,
    kind: str,
    name: str | Unset = UNSET,
    limit: int | Unset = 200,
    cursor: str | Unset = UNSET,
) -> EntityPage | Problem | None:
    """List the entities of a kind

    Args:
        kind (str): Kind.
        name (str | Unset): Only the entity with this name.
        limit (int | Unset): Most entities of a page. A page may have fewer although others
            follow. Default: 200.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        EntityPage | Problem
    """

    return sync_detailed(
        client=client,
        kind=kind,
        name=name,
        limit=limit,
        cursor=cursor,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient | Client,
    kind: str,
    name: str | Unset = UNSET,
    limit: int | Unset = 200,
    cursor: str | Unset = UNSET,
) -> Response[EntityPage | Problem]:
    """List the entities of a kind

    Args:
        kind (str): Kind.
        name (str | Unset): Only the entity with this name.
        limit (int | Unset): Most entities of a page. A page may have fewer although others
            follow. Default: 200.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[EntityPage | Problem]
    """

    kwargs = _get_kwargs(
        kind=kind,
        name=name,
        limit=limit,
        cursor=cursor,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    *,
    client: AuthenticatedClient | Client,
    kind: str,
    name: str | Unset = UNSET,
    limit: int | Unset = 200,
    cursor: str | Unset = UNSET,
) -> EntityPage | Problem | None:
    """List the entities of a kind

    Args:
        kind (str): Kind.
        name (str | Unset): Only the entity with this name.
        limit (int | Unset): Most entities of a page. A page may have fewer although others
            follow. Default: 200.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        EntityPage | Problem
    """

    return (
        await asyncio_detailed(
            client=client,
            kind=kind,
            name=name,
            limit=limit,
            cursor=cursor,
        )
    ).parsed
