from http import HTTPStatus
from typing import Any

import httpx

from ...client import AuthenticatedClient, Client
from ...models.problem import Problem
from ...models.snapshot_page import SnapshotPage
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    session: str | Unset = UNSET,
    name: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["session"] = session

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
        "url": "/snapshots",
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Problem | SnapshotPage:
    if response.status_code == 200:
        response_200 = SnapshotPage.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[Problem | SnapshotPage]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient | Client,
    session: str | Unset = UNSET,
    name: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Response[Problem | SnapshotPage]:
    """List the snapshots of the project

    Args:
        session (str | Unset): Only snapshots of this session.
        name (str | Unset): Only the snapshot with this name.
        label (list[str] | Unset): Only snapshots with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most snapshots of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | SnapshotPage]
    """

    kwargs = _get_kwargs(
        session=session,
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
    session: str | Unset = UNSET,
    name: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Problem | SnapshotPage | None:
    """List the snapshots of the project

    Args:
        session (str | Unset): Only snapshots of this session.
        name (str | Unset): Only the snapshot with this name.
        label (list[str] | Unset): Only snapshots with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most snapshots of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | SnapshotPage
    """

    return sync_detailed(
        client=client,
        session=session,
        name=name,
        label=label,
        limit=limit,
        cursor=cursor,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient | Client,
    session: str | Unset = UNSET,
    name: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Response[Problem | SnapshotPage]:
    """List the snapshots of the project

    Args:
        session (str | Unset): Only snapshots of this session.
        name (str | Unset): Only the snapshot with this name.
        label (list[str] | Unset): Only snapshots with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most snapshots of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | SnapshotPage]
    """

    kwargs = _get_kwargs(
        session=session,
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
    session: str | Unset = UNSET,
    name: str | Unset = UNSET,
    label: list[str] | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Problem | SnapshotPage | None:
    """List the snapshots of the project

    Args:
        session (str | Unset): Only snapshots of this session.
        name (str | Unset): Only the snapshot with this name.
        label (list[str] | Unset): Only snapshots with this label, KEY=VALUE; all of several.
        limit (int | Unset): Most snapshots of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | SnapshotPage
    """

    return (
        await asyncio_detailed(
            client=client,
            session=session,
            name=name,
            label=label,
            limit=limit,
            cursor=cursor,
        )
    ).parsed
