from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    app: str,
    *,
    service: str | Unset = UNSET,
    tail: int | Unset = 100,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["service"] = service

    params["tail"] = tail

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/apps/{app}/logs/stream".format(
            app=quote(str(app), safe=""),
        ),
        "params": params,
    }

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
    app: str,
    *,
    client: AuthenticatedClient | Client,
    service: str | Unset = UNSET,
    tail: int | Unset = 100,
) -> Response[Problem | str]:
    """Follow the output of an app's processes, as server-sent events

    Args:
        app (str): Name of the app.
        service (str | Unset): Only this service; absent: all.
        tail (int | Unset): So many last lines of each sandbox first. Default: 100.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | str]
    """

    kwargs = _get_kwargs(
        app=app,
        service=service,
        tail=tail,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    app: str,
    *,
    client: AuthenticatedClient | Client,
    service: str | Unset = UNSET,
    tail: int | Unset = 100,
) -> Problem | str | None:
    """Follow the output of an app's processes, as server-sent events

    Args:
        app (str): Name of the app.
        service (str | Unset): Only this service; absent: all.
        tail (int | Unset): So many last lines of each sandbox first. Default: 100.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | str
    """

    return sync_detailed(
        app=app,
        client=client,
        service=service,
        tail=tail,
    ).parsed


async def asyncio_detailed(
    app: str,
    *,
    client: AuthenticatedClient | Client,
    service: str | Unset = UNSET,
    tail: int | Unset = 100,
) -> Response[Problem | str]:
    """Follow the output of an app's processes, as server-sent events

    Args:
        app (str): Name of the app.
        service (str | Unset): Only this service; absent: all.
        tail (int | Unset): So many last lines of each sandbox first. Default: 100.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | str]
    """

    kwargs = _get_kwargs(
        app=app,
        service=service,
        tail=tail,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    app: str,
    *,
    client: AuthenticatedClient | Client,
    service: str | Unset = UNSET,
    tail: int | Unset = 100,
) -> Problem | str | None:
    """Follow the output of an app's processes, as server-sent events

    Args:
        app (str): Name of the app.
        service (str | Unset): Only this service; absent: all.
        tail (int | Unset): So many last lines of each sandbox first. Default: 100.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | str
    """

    return (
        await asyncio_detailed(
            app=app,
            client=client,
            service=service,
            tail=tail,
        )
    ).parsed
