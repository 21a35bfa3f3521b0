import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.app_logs import AppLogs
from ...models.problem import Problem
from ...models.search_app_logs_level import (
    SearchAppLogsLevel,
)
from ...types import UNSET, Response, Unset


def _get_kwargs(
    app: str,
    *,
    grep: str | Unset = UNSET,
    level: SearchAppLogsLevel | Unset = UNSET,
    service: str | Unset = UNSET,
    since: datetime.datetime | Unset = UNSET,
    until: datetime.datetime | Unset = UNSET,
    limit: int | Unset = 500,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["grep"] = grep

    json_level: str | Unset = UNSET
    if not isinstance(level, Unset):
        json_level = level

    params["level"] = json_level

    params["service"] = service

    json_since: str | Unset = UNSET
    if not isinstance(since, Unset):
        json_since = since.isoformat()
    params["since"] = json_since

    json_until: str | Unset = UNSET
    if not isinstance(until, Unset):
        json_until = until.isoformat()
    params["until"] = json_until

    params["limit"] = limit

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/apps/{app}/logs".format(
            app=quote(str(app), safe=""),
        ),
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> AppLogs | Problem:
    if response.status_code == 200:
        response_200 = AppLogs.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[AppLogs | Problem]:
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
    grep: str | Unset = UNSET,
    level: SearchAppLogsLevel | Unset = UNSET,
    service: str | Unset = UNSET,
    since: datetime.datetime | Unset = UNSET,
    until: datetime.datetime | Unset = UNSET,
    limit: int | Unset = 500,
) -> Response[AppLogs | Problem]:
    """Search the kept output of an app's processes

    Args:
        app (str): Name of the app.
        grep (str | Unset): Only lines that match this regular expression (RE2).
        level (SearchAppLogsLevel | Unset): Only lines of this level or a more serious one. A line
            that says no level counts as info, on stderr as error.
        service (str | Unset): Only lines of this service.
        since (datetime.datetime | Unset): Only lines of this time or later.
        until (datetime.datetime | Unset): Only lines before this time.
        limit (int | Unset): Most lines of the answer. Default: 500.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[AppLogs | Problem]
    """

    kwargs = _get_kwargs(
        app=app,
        grep=grep,
        level=level,
        service=service,
        since=since,
        until=until,
        limit=limit,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    app: str,
    *,
    client: AuthenticatedClient | Client,
    grep: str | Unset = UNSET,
    level: SearchAppLogsLevel | Unset = UNSET,
    service: str | Unset = UNSET,
    since: datetime.datetime | Unset = UNSET,
    until: datetime.datetime | Unset = UNSET,
    limit: int | Unset = 500,
) -> AppLogs | Problem | None:
    """Search the kept output of an app's processes

    Args:
        app (str): Name of the app.
        grep (str | Unset): Only lines that match this regular expression (RE2).
        level (SearchAppLogsLevel | Unset): Only lines of this level or a more serious one. A line
            that says no level counts as info, on stderr as error.
        service (str | Unset): Only lines of this service.
        since (datetime.datetime | Unset): Only lines of this time or later.
        until (datetime.datetime | Unset): Only lines before this time.
        limit (int | Unset): Most lines of the answer. Default: 500.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        AppLogs | Problem
    """

    return sync_detailed(
        app=app,
        client=client,
        grep=grep,
        level=level,
        service=service,
        since=since,
        until=until,
        limit=limit,
    ).parsed


async def asyncio_detailed(
    app: str,
    *,
    client: AuthenticatedClient | Client,
    grep: str | Unset = UNSET,
    level: SearchAppLogsLevel | Unset = UNSET,
    service: str | Unset = UNSET,
    since: datetime.datetime | Unset = UNSET,
    until: datetime.datetime | Unset = UNSET,
    limit: int | Unset = 500,
) -> Response[AppLogs | Problem]:
    """Search the kept output of an app's processes

    Args:
        app (str): Name of the app.
        grep (str | Unset): Only lines that match this regular expression (RE2).
        level (SearchAppLogsLevel | Unset): Only lines of this level or a more serious one. A line
            that says no level counts as info, on stderr as error.
        service (str | Unset): Only lines of this service.
        since (datetime.datetime | Unset): Only lines of this time or later.
        until (datetime.datetime | Unset): Only lines before this time.
        limit (int | Unset): Most lines of the answer. Default: 500.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[AppLogs | Problem]
    """

    kwargs = _get_kwargs(
        app=app,
        grep=grep,
        level=level,
        service=service,
        since=since,
        until=until,
        limit=limit,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    app: str,
    *,
    client: AuthenticatedClient | Client,
    grep: str | Unset = UNSET,
    level: SearchAppLogsLevel | Unset = UNSET,
    service: str | Unset = UNSET,
    since: datetime.datetime | Unset = UNSET,
    until: datetime.datetime | Unset = UNSET,
    limit: int | Unset = 500,
) -> AppLogs | Problem | None:
    """Search the kept output of an app's processes

    Args:
        app (str): Name of the app.
        grep (str | Unset): Only lines that match this regular expression (RE2).
        level (SearchAppLogsLevel | Unset): Only lines of this level or a more serious one. A line
            that says no level counts as info, on stderr as error.
        service (str | Unset): Only lines of this service.
        since (datetime.datetime | Unset): Only lines of this time or later.
        until (datetime.datetime | Unset): Only lines before this time.
        limit (int | Unset): Most lines of the answer. Default: 500.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        AppLogs | Problem
    """

    return (
        await asyncio_detailed(
            app=app,
            client=client,
            grep=grep,
            level=level,
            service=service,
            since=since,
            until=until,
            limit=limit,
        )
    ).parsed
