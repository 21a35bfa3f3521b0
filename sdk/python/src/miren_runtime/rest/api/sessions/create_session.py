from http import HTTPStatus
from typing import Any

import httpx

from ...client import AuthenticatedClient, Client
from ...models.create_session import CreateSession
from ...models.problem import Problem
from ...models.session import Session
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    body: CreateSession,
    wait: int | Unset = 60,
    idempotency_key: str | Unset = UNSET,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    if not isinstance(idempotency_key, Unset):
        headers["Idempotency-Key"] = idempotency_key

    params: dict[str, Any] = {}

    params["wait"] = wait

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "post",
        "url": "/sessions",
        "params": params,
    }

    _kwargs["json"] = body.to_dict()

    headers["Content-Type"] = "application/json"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Problem | Session:
    if response.status_code == 201:
        response_201 = Session.from_dict(response.json())

        return response_201

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[Problem | Session]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient | Client,
    body: CreateSession,
    wait: int | Unset = 60,
    idempotency_key: str | Unset = UNSET,
) -> Response[Problem | Session]:
    """Create a session

    Args:
        wait (int | Unset): Longest time until the session runs, or has ended if it is ephemeral,
            in seconds. Then it is returned as it is. Default: 60.
        idempotency_key (str | Unset): Names the request: another one with the key and the same
            body gets the session of the first, as long as the server keeps that.
        body (CreateSession):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | Session]
    """

    kwargs = _get_kwargs(
        body=body,
        wait=wait,
        idempotency_key=idempotency_key,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    *,
    client: AuthenticatedClient | Client,
    body: CreateSession,
    wait: int | Unset = 60,
    idempotency_key: str | Unset = UNSET,
) -> Problem | Session | None:
    """Create a session

    Args:
        wait (int | Unset): Longest time until the session runs, or has ended if it is ephemeral,
            in seconds. Then it is returned as it is. Default: 60.
        idempotency_key (str | Unset): Names the request: another one with the key and the same
            body gets the session of the first, as long as the server keeps that.
        body (CreateSession):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | Session
    """

    return sync_detailed(
        client=client,
        body=body,
        wait=wait,
        idempotency_key=idempotency_key,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient | Client,
    body: CreateSession,
    wait: int | Unset = 60,
    idempotency_key: str | Unset = UNSET,
) -> Response[Problem | Session]:
    """Create a session

    Args:
        wait (int | Unset): Longest time until the session runs, or has ended if it is ephemeral,
            in seconds. Then it is returned as it is. Default: 60.
        idempotency_key (str | Unset): Names the request: another one with the key and the same
            body gets the session of the first, as long as the server keeps that.
        body (CreateSession):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | Session]
    """

    kwargs = _get_kwargs(
        body=body,
        wait=wait,
        idempotency_key=idempotency_key,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    *,
    client: AuthenticatedClient | Client,
    body: CreateSession,
    wait: int | Unset = 60,
    idempotency_key: str | Unset = UNSET,
) -> Problem | Session | None:
    """Create a session

    Args:
        wait (int | Unset): Longest time until the session runs, or has ended if it is ephemeral,
            in seconds. Then it is returned as it is. Default: 60.
        idempotency_key (str | Unset): Names the request: another one with the key and the same
            body gets the session of the first, as long as the server keeps that.
        body (CreateSession):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | Session
    """

    return (
        await asyncio_detailed(
            client=client,
            body=body,
            wait=wait,
            idempotency_key=idempotency_key,
        )
    ).parsed
