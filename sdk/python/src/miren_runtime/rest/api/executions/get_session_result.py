from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.execution_result import ExecutionResult
from ...models.get_session_result_encoding import (
    GetSessionResultEncoding,
)
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    id: str,
    *,
    encoding: GetSessionResultEncoding | Unset = "text",
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    json_encoding: str | Unset = UNSET
    if not isinstance(encoding, Unset):
        json_encoding = encoding

    params["encoding"] = json_encoding

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/sessions/{id}/result".format(
            id=quote(str(id), safe=""),
        ),
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> ExecutionResult | Problem:
    if response.status_code == 200:
        response_200 = ExecutionResult.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[ExecutionResult | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    encoding: GetSessionResultEncoding | Unset = "text",
) -> Response[ExecutionResult | Problem]:
    """Get what the last execution of a session left

    Args:
        id (str): Id of the session.
        encoding (GetSessionResultEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ExecutionResult | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        encoding=encoding,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    encoding: GetSessionResultEncoding | Unset = "text",
) -> ExecutionResult | Problem | None:
    """Get what the last execution of a session left

    Args:
        id (str): Id of the session.
        encoding (GetSessionResultEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ExecutionResult | Problem
    """

    return sync_detailed(
        id=id,
        client=client,
        encoding=encoding,
    ).parsed


async def asyncio_detailed(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    encoding: GetSessionResultEncoding | Unset = "text",
) -> Response[ExecutionResult | Problem]:
    """Get what the last execution of a session left

    Args:
        id (str): Id of the session.
        encoding (GetSessionResultEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ExecutionResult | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        encoding=encoding,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    encoding: GetSessionResultEncoding | Unset = "text",
) -> ExecutionResult | Problem | None:
    """Get what the last execution of a session left

    Args:
        id (str): Id of the session.
        encoding (GetSessionResultEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ExecutionResult | Problem
    """

    return (
        await asyncio_detailed(
            id=id,
            client=client,
            encoding=encoding,
        )
    ).parsed
