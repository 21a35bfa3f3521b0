from http import HTTPStatus
from typing import Any

import httpx

from ...client import AuthenticatedClient, Client
from ...models.execution_page import ExecutionPage
from ...models.list_executions_state import (
    ListExecutionsState,
)
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    state: ListExecutionsState | Unset = UNSET,
    batch: str | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    json_state: str | Unset = UNSET
    if not isinstance(state, Unset):
        json_state = state

    params["state"] = json_state

    params["batch"] = batch

    params["limit"] = limit

    params["cursor"] = cursor

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/executions",
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> ExecutionPage | Problem:
    if response.status_code == 200:
        response_200 = ExecutionPage.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[ExecutionPage | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient | Client,
    state: ListExecutionsState | Unset = UNSET,
    batch: str | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Response[ExecutionPage | Problem]:
    """List the executions of the project, newest first

    Args:
        state (ListExecutionsState | Unset): Only executions in this state.
        batch (str | Unset): Only executions of this batch.
        limit (int | Unset): Most executions of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ExecutionPage | Problem]
    """

    kwargs = _get_kwargs(
        state=state,
        batch=batch,
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
    state: ListExecutionsState | Unset = UNSET,
    batch: str | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> ExecutionPage | Problem | None:
    """List the executions of the project, newest first

    Args:
        state (ListExecutionsState | Unset): Only executions in this state.
        batch (str | Unset): Only executions of this batch.
        limit (int | Unset): Most executions of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ExecutionPage | Problem
    """

    return sync_detailed(
        client=client,
        state=state,
        batch=batch,
        limit=limit,
        cursor=cursor,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient | Client,
    state: ListExecutionsState | Unset = UNSET,
    batch: str | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Response[ExecutionPage | Problem]:
    """List the executions of the project, newest first

    Args:
        state (ListExecutionsState | Unset): Only executions in this state.
        batch (str | Unset): Only executions of this batch.
        limit (int | Unset): Most executions of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ExecutionPage | Problem]
    """

    kwargs = _get_kwargs(
        state=state,
        batch=batch,
        limit=limit,
        cursor=cursor,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    *,
    client: AuthenticatedClient | Client,
    state: ListExecutionsState | Unset = UNSET,
    batch: str | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> ExecutionPage | Problem | None:
    """List the executions of the project, newest first

    Args:
        state (ListExecutionsState | Unset): Only executions in this state.
        batch (str | Unset): Only executions of this batch.
        limit (int | Unset): Most executions of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ExecutionPage | Problem
    """

    return (
        await asyncio_detailed(
            client=client,
            state=state,
            batch=batch,
            limit=limit,
            cursor=cursor,
        )
    ).parsed
