from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.get_entity_response_200 import GetEntityResponse200
from ...models.problem import Problem
from ...types import Response


def _get_kwargs(
    kind: str,
    id: str,
) -> dict[str, Any]:

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/entities/{kind}/{id}".format(
            kind=quote(str(kind), safe=""),
            id=quote(str(id), safe=""),
        ),
    }

    return _kwargs


def _parse_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> GetEntityResponse200 | Problem:
    if response.status_code == 200:
        response_200 = GetEntityResponse200.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[GetEntityResponse200 | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    kind: str,
    id: str,
    *,
    client: AuthenticatedClient | Client,
) -> Response[GetEntityResponse200 | Problem]:
    """Get an entity

    Args:
        kind (str): Kind.
        id (str): Id.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[GetEntityResponse200 | Problem]
    """

    kwargs = _get_kwargs(
        kind=kind,
        id=id,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    kind: str,
    id: str,
    *,
    client: AuthenticatedClient | Client,
) -> GetEntityResponse200 | Problem | None:
    """Get an entity

    Args:
        kind (str): Kind.
        id (str): Id.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        GetEntityResponse200 | Problem
    """

    return sync_detailed(
        kind=kind,
        id=id,
        client=client,
    ).parsed


async def asyncio_detailed(
    kind: str,
    id: str,
    *,
    client: AuthenticatedClient | Client,
) -> Response[GetEntityResponse200 | Problem]:
    """Get an entity

    Args:
        kind (str): Kind.
        id (str): Id.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[GetEntityResponse200 | Problem]
    """

    kwargs = _get_kwargs(
        kind=kind,
        id=id,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    kind: str,
    id: str,
    *,
    client: AuthenticatedClient | Client,
) -> GetEntityResponse200 | Problem | None:
    """Get an entity

    Args:
        kind (str): Kind.
        id (str): Id.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        GetEntityResponse200 | Problem
    """

    return (
        await asyncio_detailed(
            kind=kind,
            id=id,
            client=client,
        )
    ).parsed
