from http import HTTPStatus
from typing import Any

import httpx

from ...client import AuthenticatedClient, Client
from ...models.execution import Execution
from ...models.problem import Problem
from ...models.submission import Submission
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    body: Submission,
    wait: int | Unset = 0,
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
        "url": "/executions",
        "params": params,
    }

    _kwargs["json"] = body.to_dict()

    headers["Content-Type"] = "application/json"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Execution | Problem:
    if response.status_code == 201:
        response_201 = Execution.from_dict(response.json())

        return response_201

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[Execution | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient | Client,
    body: Submission,
    wait: int | Unset = 0,
    idempotency_key: str | Unset = UNSET,
) -> Response[Execution | Problem]:
    """Execute code or a command in a sandbox of its own

    Args:
        wait (int | Unset): Longest time until the execution has ended, in seconds. Then it is
            returned as it is. Default: 0.
        idempotency_key (str | Unset): Names the submission: another one with the key and the same
            body gets the execution of the first.
        body (Submission):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Execution | Problem]
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
    body: Submission,
    wait: int | Unset = 0,
    idempotency_key: str | Unset = UNSET,
) -> Execution | Problem | None:
    """Execute code or a command in a sandbox of its own

    Args:
        wait (int | Unset): Longest time until the execution has ended, in seconds. Then it is
            returned as it is. Default: 0.
        idempotency_key (str | Unset): Names the submission: another one with the key and the same
            body gets the execution of the first.
        body (Submission):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Execution | Problem
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
    body: Submission,
    wait: int | Unset = 0,
    idempotency_key: str | Unset = UNSET,
) -> Response[Execution | Problem]:
    """Execute code or a command in a sandbox of its own

    Args:
        wait (int | Unset): Longest time until the execution has ended, in seconds. Then it is
            returned as it is. Default: 0.
        idempotency_key (str | Unset): Names the submission: another one with the key and the same
            body gets the execution of the first.
        body (Submission):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Execution | Problem]
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
    body: Submission,
    wait: int | Unset = 0,
    idempotency_key: str | Unset = UNSET,
) -> Execution | Problem | None:
    """Execute code or a command in a sandbox of its own

    Args:
        wait (int | Unset): Longest time until the execution has ended, in seconds. Then it is
            returned as it is. Default: 0.
        idempotency_key (str | Unset): Names the submission: another one with the key and the same
            body gets the execution of the first.
        body (Submission):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Execution | Problem
    """

    return (
        await asyncio_detailed(
            client=client,
            body=body,
            wait=wait,
            idempotency_key=idempotency_key,
        )
    ).parsed
