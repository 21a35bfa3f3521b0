from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.execute import Execute
from ...models.execute_in_session_encoding import (
    ExecuteInSessionEncoding,
)
from ...models.execution import Execution
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    id: str,
    *,
    body: Execute,
    wait: int | Unset = 0,
    encoding: ExecuteInSessionEncoding | Unset = "text",
    idempotency_key: str | Unset = UNSET,
    accept: str | Unset = UNSET,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    if not isinstance(idempotency_key, Unset):
        headers["Idempotency-Key"] = idempotency_key

    if not isinstance(accept, Unset):
        headers["Accept"] = accept

    params: dict[str, Any] = {}

    params["wait"] = wait

    json_encoding: str | Unset = UNSET
    if not isinstance(encoding, Unset):
        json_encoding = encoding

    params["encoding"] = json_encoding

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "post",
        "url": "/sessions/{id}/execute".format(
            id=quote(str(id), safe=""),
        ),
        "params": params,
    }

    _kwargs["json"] = body.to_dict()

    headers["Content-Type"] = "application/json"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Execution | Problem:
    if response.status_code == 200:
        response_200 = Execution.from_dict(response.json())

        return response_200

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
    id: str,
    *,
    client: AuthenticatedClient | Client,
    body: Execute,
    wait: int | Unset = 0,
    encoding: ExecuteInSessionEncoding | Unset = "text",
    idempotency_key: str | Unset = UNSET,
    accept: str | Unset = UNSET,
) -> Response[Execution | Problem]:
    """Execute code or a command in a persistent session

    Args:
        id (str): Id of the session.
        wait (int | Unset): Longest time until the execution has ended, in seconds. Then it is
            returned as it is. Default: 0.
        encoding (ExecuteInSessionEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.
        idempotency_key (str | Unset): Names the submission: another one with the key and the same
            body gets the execution of the first.
        accept (str | Unset): text/event-stream: the answer is the stream of the execution.
        body (Execute):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Execution | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        body=body,
        wait=wait,
        encoding=encoding,
        idempotency_key=idempotency_key,
        accept=accept,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    body: Execute,
    wait: int | Unset = 0,
    encoding: ExecuteInSessionEncoding | Unset = "text",
    idempotency_key: str | Unset = UNSET,
    accept: str | Unset = UNSET,
) -> Execution | Problem | None:
    """Execute code or a command in a persistent session

    Args:
        id (str): Id of the session.
        wait (int | Unset): Longest time until the execution has ended, in seconds. Then it is
            returned as it is. Default: 0.
        encoding (ExecuteInSessionEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.
        idempotency_key (str | Unset): Names the submission: another one with the key and the same
            body gets the execution of the first.
        accept (str | Unset): text/event-stream: the answer is the stream of the execution.
        body (Execute):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Execution | Problem
    """

    return sync_detailed(
        id=id,
        client=client,
        body=body,
        wait=wait,
        encoding=encoding,
        idempotency_key=idempotency_key,
        accept=accept,
    ).parsed


async def asyncio_detailed(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    body: Execute,
    wait: int | Unset = 0,
    encoding: ExecuteInSessionEncoding | Unset = "text",
    idempotency_key: str | Unset = UNSET,
    accept: str | Unset = UNSET,
) -> Response[Execution | Problem]:
    """Execute code or a command in a persistent session

    Args:
        id (str): Id of the session.
        wait (int | Unset): Longest time until the execution has ended, in seconds. Then it is
            returned as it is. Default: 0.
        encoding (ExecuteInSessionEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.
        idempotency_key (str | Unset): Names the submission: another one with the key and the same
            body gets the execution of the first.
        accept (str | Unset): text/event-stream: the answer is the stream of the execution.
        body (Execute):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Execution | Problem]
    """

    kwargs = _get_kwargs(
        id=id,
        body=body,
        wait=wait,
        encoding=encoding,
        idempotency_key=idempotency_key,
        accept=accept,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    id: str,
    *,
    client: AuthenticatedClient | Client,
    body: Execute,
    wait: int | Unset = 0,
    encoding: ExecuteInSessionEncoding | Unset = "text",
    idempotency_key: str | Unset = UNSET,
    accept: str | Unset = UNSET,
) -> Execution | Problem | None:
    """Execute code or a command in a persistent session

    Args:
        id (str): Id of the session.
        wait (int | Unset): Longest time until the execution has ended, in seconds. Then it is
            returned as it is. Default: 0.
        encoding (ExecuteInSessionEncoding | Unset): text: bytes that are not UTF-8 are replaced.
            Default: 'text'.
        idempotency_key (str | Unset): Names the submission: another one with the key and the same
            body gets the execution of the first.
        accept (str | Unset): text/event-stream: the answer is the stream of the execution.
        body (Execute):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Execution | Problem
    """

    return (
        await asyncio_detailed(
            id=id,
            client=client,
            body=body,
            wait=wait,
            encoding=encoding,
            idempotency_key=idempotency_key,
            accept=accept,
        )
    ).parsed
