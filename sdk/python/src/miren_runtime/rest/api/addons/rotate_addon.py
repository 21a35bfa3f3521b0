from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.addon import Addon
from ...models.problem import Problem
from ...types import Response


def _get_kwargs(
    addon: str,
) -> dict[str, Any]:

    _kwargs: dict[str, Any] = {
        "method": "post",
        "url": "/addons/{addon}/rotate".format(
            addon=quote(str(addon), safe=""),
        ),
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Addon | Problem:
    if response.status_code == 200:
        response_200 = Addon.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[Addon | Problem]:
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
) -> Response[Addon | Problem]:
    """Give an addon and its apps new credentials

    Args:
        addon (str): Name of the addon.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Addon | Problem]
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
) -> Addon | Problem | None:
    """Give an addon and its apps new credentials

    Args:
        addon (str): Name of the addon.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Addon | Problem
    """

    return sync_detailed(
        addon=addon,
        client=client,
    ).parsed


async def asyncio_detailed(
    addon: str,
    *,
    client: AuthenticatedClient | Client,
) -> Response[Addon | Problem]:
    """Give an addon and its apps new credentials

    Args:
        addon (str): Name of the addon.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Addon | Problem]
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
) -> Addon | Problem | None:
    """Give an addon and its apps new credentials

    Args:
        addon (str): Name of the addon.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Addon | Problem
    """

    return (
        await asyncio_detailed(
            addon=addon,
            client=client,
        )
    ).parsed
