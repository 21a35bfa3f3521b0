from http import HTTPStatus
from typing import Any

import httpx

from ...client import AuthenticatedClient, Client
from ...models.list_sessions_state import ListSessionsState
from ...models.problem import Problem
from ...models.session_page import SessionPage
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    state: ListSessionsState | Unset = UNSET,
    name: str | Unset = UNSET,
    agent: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    json_state: str | Unset = UNSET
    if not isinstance(state, Unset):
        json_state = state

    params["state"] = json_state

    params["name"] = name

    params["agent"] = agent

    json_label: list[str] | Unset = UNSET
    if not isinstance(label, Unset):
        json_label = label

    params["label"] = json_label

    params["limit"] = limit

    params["cursor"] = cursor

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/sessions",
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Problem | SessionPage:
    if response.status_code == 200:
        response_200 = SessionPage.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[Problem | SessionPage]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient | Client,
    state: ListSessionsState | Unset = UNSET,
    name: str | Unset = UNSET,
    agent: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Response[Problem | SessionPage]:
    """List the persistent sessions of the project

    Args:
        state (ListSessionsState | Unset): Only sessions in this state.
        name (str | Unset): Only the session with this name.
        agent (str | Unset): Only sessions of this agent.
        label (list[str] | Unset): Only sessions with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most sessions of a page. A page may have fewer although others
            follow. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | SessionPage]
    """

    kwargs = _get_kwargs(
        state=state,
        name=name,
        agent=agent,
        label=label,
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
    state: ListSessionsState | Unset = UNSET,
    name: str | Unset = UNSET,
    agent: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Problem | SessionPage | None:
    """List the persistent sessions of the project

    Args:
        state (ListSessionsState | Unset): Only sessions in this state.
        name (str | Unset): Only the session with this name.
        agent (str | Unset): Only sessions of this agent.
        label (list[str] | Unset): Only sessions with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most sessions of a page. A page may have fewer although others
            follow. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | SessionPage
    """

    return sync_detailed(
        client=client,
        state=state,
        name=name,
        agent=agent,
        label=label,
        limit=limit,
        cursor=cursor,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient | Client,
    state: ListSessionsState | Unset = UNSET,
    name: str | Unset = UNSET,
    agent: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Response[Problem | SessionPage]:
    """List the persistent sessions of the project

    Args:
        state (ListSessionsState | Unset): Only sessions in this state.
        name (str | Unset): Only the session with this name.
        agent (str | Unset): Only sessions of this agent.
        label (list[str] | Unset): Only sessions with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most sessions of a page. A page may have fewer although others
            follow. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | SessionPage]
    """

    kwargs = _get_kwargs(
        state=state,
        name=name,
        agent=agent,
        label=label,
        limit=limit,
        cursor=cursor,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    *,
    client: AuthenticatedClient | Client,
    state: ListSessionsState | Unset = UNSET,
    name: str | Unset = UNSET,
    agent: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Problem | SessionPage | None:
    """List the persistent sessions of the project

    Args:
        state (ListSessionsState | Unset): Only sessions in this state.
        name (str | Unset): Only the session with this name.
        agent (str | Unset): Only sessions of this agent.
        label (list[str] | Unset): Only sessions with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most sessions of a page. A page may have fewer although others
            follow. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | SessionPage
    """

    return (
        await asyncio_detailed(
            client=client,
            state=state,
            name=name,
            agent=agent,
            label=label,
            limit=limit,
            cursor=cursor,
        )
    ).parsed
