from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.addon_details import AddonDetails
from ...models.problem import Problem
from ...types import Response


def _get_kwargs(
    addon: str,
) -> dict[str, Any]:

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/addons/{addon}".format(
            addon=quote(str(addon), safe=""),
        ),
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> AddonDetails | Problem:
    if response.status_code == 200:
        response_200 = AddonDetails.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[AddonDetails | Problem]:
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
) -> Response[AddonDetails | Problem]:
    """Get an addon with the apps that use it and its backups

    Args:
        addon (str): Name of the addon.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[AddonDetails | Problem]
    """

    kwargs = _get_kwargs(
        addon=addon,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    addon: str,
    *,
    client: AuthenticatedClient | Client,
) -> AddonDetails | Problem | None:
    """Get an addon with the apps that use it and its backups

    Args:
        addon (str): Name of the addon.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        AddonDetails | Problem
    """

    return sync_detailed(
        addon=addon,
        client=client,
    ).parsed


async def asyncio_detailed(
    addon: str,
    *,
    client: AuthenticatedClient | Client,
) -> Response[AddonDetails | Problem]:
    """Get an addon with the apps that use it and its backups

    Args:
        addon (str): Name of the addon.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[AddonDetails | Problem]
    """

    kwargs = _get_kwargs(
        addon=addon,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    addon: str,
    *,
    client: AuthenticatedClient | Client,
) -> AddonDetails | Problem | None:
    """Get an addon with the apps that use it and its backups

    Args:
        addon (str): Name of the addon.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        AddonDetails | Problem
    """

    return (
        await asyncio_detailed(
            addon=addon,
            client=client,
        )
    ).parsed
