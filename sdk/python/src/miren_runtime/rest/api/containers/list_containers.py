from http import HTTPStatus
from typing import Any

import httpx

from ...client import AuthenticatedClient, Client
from ...models.container_page import ContainerPage
from ...models.list_containers_purpose import (
    ListContainersPurpose,
)
from ...models.list_containers_state import (
    ListContainersState,
)
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    purpose: ListContainersPurpose | Unset = UNSET,
    state: ListContainersState | Unset = UNSET,
    name: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    json_purpose: str | Unset = UNSET
    if not isinstance(purpose, Unset):
        json_purpose = purpose

    params["purpose"] = json_purpose

    json_state: str | Unset = UNSET
    if not isinstance(state, Unset):
        json_state = state

    params["state"] = json_state

    params["name"] = name

    json_label: list[str] | Unset = UNSET
    if not isinstance(label, Unset):
        json_label = label

    params["label"] = json_label

    params["limit"] = limit

    params["cursor"] = cursor

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/containers",
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> ContainerPage | Problem:
    if response.status_code == 200:
        response_200 = ContainerPage.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[ContainerPage | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient | Client,
    purpose: ListContainersPurpose | Unset = UNSET,
    state: ListContainersState | Unset = UNSET,
    name: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Response[ContainerPage | Problem]:
    """List every sandbox of the project, those of apps, executions and pools included

    Args:
        purpose (ListContainersPurpose | Unset): Only containers for this.
        state (ListContainersState | Unset): Only containers in this state.
        name (str | Unset): Only the container with this name.
        label (list[str] | Unset): Only containers with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most containers of a page. A page may have fewer although others
            follow. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ContainerPage | Problem]
    """

    kwargs = _get_kwargs(
        purpose=purpose,
        state=state,
        name=name,
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
    purpose: ListContainersPurpose | Unset = UNSET,
    state: ListContainersState | Unset = UNSET,
    name: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> ContainerPage | Problem | None:
    """List every sandbox of the project, those of apps, executions and pools included

    Args:
        purpose (ListContainersPurpose | Unset): Only containers for this.
        state (ListContainersState | Unset): Only containers in this state.
        name (str | Unset): Only the container with this name.
        label (list[str] | Unset): Only containers with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most containers of a page. A page may have fewer although others
            follow. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ContainerPage | Problem
    """

    return sync_detailed(
        client=client,
        purpose=purpose,
        state=state,
        name=name,
        label=label,
        limit=limit,
        cursor=cursor,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient | Client,
    purpose: ListContainersPurpose | Unset = UNSET,
    state: ListContainersState | Unset = UNSET,
    name: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Response[ContainerPage | Problem]:
    """List every sandbox of the project, those of apps, executions and pools included

    Args:
        purpose (ListContainersPurpose | Unset): Only containers for this.
        state (ListContainersState | Unset): Only containers in this state.
        name (str | Unset): Only the container with this name.
        label (list[str] | Unset): Only containers with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most containers of a page. A page may have fewer although others
            follow. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ContainerPage | Problem]
    """

    kwargs = _get_kwargs(
        purpose=purpose,
        state=state,
        name=name,
        label=label,
        limit=limit,
        cursor=cursor,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    *,
    client: AuthenticatedClient | Client,
    purpose: ListContainersPurpose | Unset = UNSET,
    state: ListContainersState | Unset = UNSET,
    name: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> ContainerPage | Problem | None:
    """List every sandbox of the project, those of apps, executions and pools included

    Args:
        purpose (ListContainersPurpose | Unset): Only containers for this.
        state (ListContainersState | Unset): Only containers in this state.
        name (str | Unset): Only the container with this name.
        label (list[str] | Unset): Only containers with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most containers of a page. A page may have fewer although others
            follow. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ContainerPage | Problem
    """

    return (
        await asyncio_detailed(
            client=client,
            purpose=purpose,
            state=state,
            name=name,
            label=label,
            limit=limit,
            cursor=cursor,
        )
    ).parsed
