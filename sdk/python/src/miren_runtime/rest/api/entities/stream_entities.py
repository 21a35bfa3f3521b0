from http import HTTPStatus
from typing import Any

import httpx

from ...client import AuthenticatedClient, Client
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    kind: list[str],
    last_event_id: str | Unset = UNSET,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    if not isinstance(last_event_id, Unset):
        headers["Last-Event-ID"] = last_event_id

    params: dict[str, Any] = {}

    json_kind = kind

    params["kind"] = json_kind

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/entities/stream",
        "params": params,
    }

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Problem | str:
    if response.status_code == 200:
        response_200 = response.text
        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[Problem | str]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient | Client,
    kind: list[str],
    last_event_id: str | Unset = UNSET,
) -> Response[Problem | str]:
    """Follow the changes of entities, as server-sent events

    Args:
        kind (list[str]): Kinds.
        last_event_id (str | Unset): position of a list, or id of the last event of an earlier
            stream: the changes after it follow. Absent: those from now on. 410 if some of them are
            not kept any more.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | str]
    """

    kwargs = _get_kwargs(
        kind=kind,
        last_event_id=last_event_id,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    *,
    client: AuthenticatedClient | Client,
    kind: list[str],
    last_event_id: str | Unset = UNSET,
) -> Problem | str | None:
    """Follow the changes of entities, as server-sent events

    Args:
        kind (list[str]): Kinds.
        last_event_id (str | Unset): position of a list, or id of the last event of an earlier
            stream: the changes after it follow. Absent: those from now on. 410 if some of them are
            not kept any more.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | str
    """

    return sync_detailed(
        client=client,
        kind=kind,
        last_event_id=last_event_id,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient | Client,
    kind: list[str],
    last_event_id: str | Unset = UNSET,
) -> Response[Problem | str]:
    """Follow the changes of entities, as server-sent events

    Args:
        kind (list[str]): Kinds.
        last_event_id (str | Unset): position of a list, or id of the last event of an earlier
            stream: the changes after it follow. Absent: those from now on. 410 if some of them are
            not kept any more.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | str]
    """

    kwargs = _get_kwargs(
        kind=kind,
        last_event_id=last_event_id,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    *,
    client: AuthenticatedClient | Client,
    kind: list[str],
    last_event_id: str | Unset = UNSET,
) -> Problem | str | None:
    """Follow the changes of entities, as server-sent events

    Args:
        kind (list[str]): Kinds.
        last_event_id (str | Unset): position of a list, or id of the last event of an earlier
            stream: the changes after it follow. Absent: those from now on. 410 if some of them are
            not kept any more.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | str
    """

    return (
        await asyncio_detailed(
            client=client,
            kind=kind,
            last_event_id=last_event_id,
        )
    ).parsed
