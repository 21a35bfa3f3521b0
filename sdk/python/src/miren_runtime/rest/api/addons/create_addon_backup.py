from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.create_addon_backup_input_body import CreateAddonBackupInputBody
from ...models.problem import Problem
from ...models.volume_snapshot import VolumeSnapshot
from ...types import Response


def _get_kwargs(
    addon: str,
    *,
    body: CreateAddonBackupInputBody,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}

    _kwargs: dict[str, Any] = {
        "method": "post",
        "url": "/addons/{addon}/backups".format(
            addon=quote(str(addon), safe=""),
        ),
    }

    _kwargs["json"] = body.to_dict()

    headers["Content-Type"] = "application/json"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Problem | VolumeSnapshot:
    if response.status_code == 201:
        response_201 = VolumeSnapshot.from_dict(response.json())

        return response_201

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[Problem | VolumeSnapshot]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    addon: str,
    *,
    client: AuthenticatedClient | Client,
    body: CreateAddonBackupInputBody,
) -> Response[Problem | VolumeSnapshot]:
    """Keep the present state of an addon

    Args:
        addon (str): Name of the addon.
        body (CreateAddonBackupInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | VolumeSnapshot]
    """

    kwargs = _get_kwargs(
        addon=addon,
        body=body,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    addon: str,
    *,
    client: AuthenticatedClient | Client,
    body: CreateAddonBackupInputBody,
) -> Problem | VolumeSnapshot | None:
    """Keep the present state of an addon

    Args:
        addon (str): Name of the addon.
        body (CreateAddonBackupInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | VolumeSnapshot
    """

    return sync_detailed(
        addon=addon,
        client=client,
        body=body,
    ).parsed


async def asyncio_detailed(
    addon: str,
    *,
    client: AuthenticatedClient | Client,
    body: CreateAddonBackupInputBody,
) -> Response[Problem | VolumeSnapshot]:
    """Keep the present state of an addon

    Args:
        addon (str): Name of the addon.
        body (CreateAddonBackupInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | VolumeSnapshot]
    """

    kwargs = _get_kwargs(
        addon=addon,
        body=body,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    addon: str,
    *,
    client: AuthenticatedClient | Client,
    body: CreateAddonBackupInputBody,
) -> Problem | VolumeSnapshot | None:
    """Keep the present state of an addon

    Args:
        addon (str): Name of the addon.
        body (CreateAddonBackupInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | VolumeSnapshot
    """

    return (
        await asyncio_detailed(
            addon=addon,
            client=client,
            body=body,
        )
    ).parsed
