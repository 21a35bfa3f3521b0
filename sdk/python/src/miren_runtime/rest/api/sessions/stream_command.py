from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.problem import Problem
from ...models.stream_command_encoding import (
    StreamCommandEncoding,
)
from ...types import UNSET, Response, Unset


def _get_kwargs(
    id: str,
    command: str,
    *,
    encoding: StreamCommandEncoding | Unset = "text",
    last_event_id: str | Unset = UNSET,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    if not isinstance(last_event_id, Unset):
        headers["Last-Event-ID"] = last_event_id

    params: dict[str, Any] = {}

    json_encoding: str | Unset = UNSET
    if not isinstance(encoding, Unset):
        json_encoding = encoding

    params["encoding"] = json_encoding

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/sessions/{id}/commands/{command}/stream".format(
            id=quote(str(id), safe=""),
            command=quote(str(command), safe=""),
        ),
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
    id: str,
    command: str,
    *,
    client: AuthenticatedClient | Client,
    encoding: StreamCommandEncoding | Unset = "text",
    last_event_id: str | Unset = UNSET,
) -> Response[Problem | str]:
    """Follow the output of a command in the background, as server-sent events

    Args:
        id (str): Id of the session.
        command (str): Id of a command in the background.
        encoding (StreamCommandEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.
        last_event_id (str | Unset): id of the last event of an earlier stream: this one goes on
            after it.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | str]
    """

    kwargs = _get_kwargs(
        id=id,
        command=command,
        encoding=encoding,
        last_event_id=last_event_id,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    id: str,
    command: str,
    *,
    client: AuthenticatedClient | Client,
    encoding: StreamCommandEncoding | Unset = "text",
    last_event_id: str | Unset = UNSET,
) -> Problem | str | None:
    """Follow the output of a command in the background, as server-sent events

    Args:
        id (str): Id of the session.
        command (str): Id of a command in the background.
        encoding (StreamCommandEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.
        last_event_id (str | Unset): id of the last event of an earlier stream: this one goes on
            after it.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | str
    """

    return sync_detailed(
        id=id,
        command=command,
        client=client,
        encoding=encoding,
        last_event_id=last_event_id,
    ).parsed


async def asyncio_detailed(
    id: str,
    command: str,
    *,
    client: AuthenticatedClient | Client,
    encoding: StreamCommandEncoding | Unset = "text",
    last_event_id: str | Unset = UNSET,
) -> Response[Problem | str]:
    """Follow the output of a command in the background, as server-sent events

    Args:
        id (str): Id of the session.
        command (str): Id of a command in the background.
        encoding (StreamCommandEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.
        last_event_id (str | Unset): id of the last event of an earlier stream: this one goes on
            after it.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | str]
    """

    kwargs = _get_kwargs(
        id=id,
        command=command,
        encoding=encoding,
        last_event_id=last_event_id,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    id: str,
    command: str,
    *,
    client: AuthenticatedClient | Client,
    encoding: StreamCommandEncoding | Unset = "text",
    last_event_id: str | Unset = UNSET,
) -> Problem | str | None:
    """Follow the output of a command in the background, as server-sent events

    Args:
        id (str): Id of the session.
        command (str): Id of a command in the background.
        encoding (StreamCommandEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.
        last_event_id (str | Unset): id of the last event of an earlier stream: this one goes on
            after it.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | str
    """

    return (
        await asyncio_detailed(
            id=id,
            command=command,
            client=client,
            encoding=encoding,
            last_event_id=last_event_id,
        )
    ).parsed
