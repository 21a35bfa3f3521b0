import datetime
from http import HTTPStatus
from typing import Any

import httpx

from ...client import AuthenticatedClient, Client
from ...models.audit_page import AuditPage
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    actor: str | Unset = UNSET,
    action: str | Unset = UNSET,
    subject_kind: str | Unset = UNSET,
    subject: str | Unset = UNSET,
    since: datetime.datetime | Unset = UNSET,
    until: datetime.datetime | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["actor"] = actor

    params["action"] = action

    params["subject_kind"] = subject_kind

    params["subject"] = subject

    json_since: str | Unset = UNSET
    if not isinstance(since, Unset):
        json_since = since.isoformat()
    params["since"] = json_since

    json_until: str | Unset = UNSET
    if not isinstance(until, Unset):
        json_until = until.isoformat()
    params["until"] = json_until

    params["limit"] = limit

    params["cursor"] = cursor

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/audit",
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> AuditPage | Problem:
    if response.status_code == 200:
        response_200 = AuditPage.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[AuditPage | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient | Client,
    actor: str | Unset = UNSET,
    action: str | Unset = UNSET,
    subject_kind: str | Unset = UNSET,
    subject: str | Unset = UNSET,
    since: datetime.datetime | Unset = UNSET,
    until: datetime.datetime | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Response[AuditPage | Problem]:
    """List the calls that changed something in the project, and refused ones

    Args:
        actor (str | Unset): Only calls of this identity, such as key:default/ci.
        action (str | Unset): Only this call, such as sandbox.Sandboxes/Run.
        subject_kind (str | Unset): With subject: only calls about this; the kind, such as
            sandbox.
        subject (str | Unset): With subject_kind: id, or the name that the calls gave.
        since (datetime.datetime | Unset): Only records of this time or later.
        until (datetime.datetime | Unset): Only records before this time.
        limit (int | Unset): Most records of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[AuditPage | Problem]
    """

    kwargs = _get_kwargs(
        actor=actor,
        action=action,
        subject_kind=subject_kind,
        subject=subject,
        since=since,
        until=until,
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
    actor: str | Unset = UNSET,
    action: str | Unset = UNSET,
    subject_kind: str | Unset = UNSET,
    subject: str | Unset = UNSET,
    since: datetime.datetime | Unset = UNSET,
    until: datetime.datetime | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> AuditPage | Problem | None:
    """List the calls that changed something in the project, and refused ones

    Args:
        actor (str | Unset): Only calls of this identity, such as key:default/ci.
        action (str | Unset): Only this call, such as sandbox.Sandboxes/Run.
        subject_kind (str | Unset): With subject: only calls about this; the kind, such as
            sandbox.
        subject (str | Unset): With subject_kind: id, or the name that the calls gave.
        since (datetime.datetime | Unset): Only records of this time or later.
        until (datetime.datetime | Unset): Only records before this time.
        limit (int | Unset): Most records of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        AuditPage | Problem
    """

    return sync_detailed(
        client=client,
        actor=actor,
        action=action,
        subject_kind=subject_kind,
        subject=subject,
        since=since,
        until=until,
        limit=limit,
        cursor=cursor,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient | Client,
    actor: str | Unset = UNSET,
    action: str | Unset = UNSET,
    subject_kind: str | Unset = UNSET,
    subject: str | Unset = UNSET,
    since: datetime.datetime | Unset = UNSET,
    until: datetime.datetime | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> Response[AuditPage | Problem]:
    """List the calls that changed something in the project, and refused ones

    Args:
        actor (str | Unset): Only calls of this identity, such as key:default/ci.
        action (str | Unset): Only this call, such as sandbox.Sandboxes/Run.
        subject_kind (str | Unset): With subject: only calls about this; the kind, such as
            sandbox.
        subject (str | Unset): With subject_kind: id, or the name that the calls gave.
        since (datetime.datetime | Unset): Only records of this time or later.
        until (datetime.datetime | Unset): Only records before this time.
        limit (int | Unset): Most records of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[AuditPage | Problem]
    """

    kwargs = _get_kwargs(
        actor=actor,
        action=action,
        subject_kind=subject_kind,
        subject=subject,
        since=since,
        until=until,
        limit=limit,
        cursor=cursor,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    *,
    client: AuthenticatedClient | Client,
    actor: str | Unset = UNSET,
    action: str | Unset = UNSET,
    subject_kind: str | Unset = UNSET,
    subject: str | Unset = UNSET,
    since: datetime.datetime | Unset = UNSET,
    until: datetime.datetime | Unset = UNSET,
    limit: int | Unset = 100,
    cursor: str | Unset = UNSET,
) -> AuditPage | Problem | None:
    """List the calls that changed something in the project, and refused ones

    Args:
        actor (str | Unset): Only calls of this identity, such as key:default/ci.
        action (str | Unset): Only this call, such as sandbox.Sandboxes/Run.
        subject_kind (str | Unset): With subject: only calls about this; the kind, such as
            sandbox.
        subject (str | Unset): With subject_kind: id, or the name that the calls gave.
        since (datetime.datetime | Unset): Only records of this time or later.
        until (datetime.datetime | Unset): Only records before this time.
        limit (int | Unset): Most records of a page. Default: 100.
        cursor (str | Unset): next_cursor of the page before.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        AuditPage | Problem
    """

    return (
        await asyncio_detailed(
            client=client,
            actor=actor,
            action=action,
            subject_kind=subject_kind,
            subject=subject,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
        )
    ).parsed
