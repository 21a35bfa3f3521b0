from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.problem import Problem
from ...types import Response


def _get_kwargs(
    addon: str,
    app: str,
) -> dict[str, Any]:

    _kwargs: dict[str, Any] = {
        "method": "delete",
        "url": "/addons/{addon}/apps/{app}".format(
            addon=quote(str(addon), safe=""),
            app=quote(str(app), safe=""),
        ),
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Any | Problem:
    if response.status_code == 204:
        response_204 = cast(Any, None)
        return response_204

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[Any | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    addon: str,
    app: str,
    *,
    client: AuthenticatedClient | Client,
) -> Response[Any | Problem]:
    """Take the variables of an addon from an app

    Args:
        addon (str): Name of the addon.
        app (str): Name of the app.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Any | Problem]
    """

    kwargs = _get_kwargs(
        addon=addon,
        app=app,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    addon: str,
    app: str,
    *,
    client: AuthenticatedClient | Client,
) -> Any | Problem | None:
    """Take the variables of an addon from an app

    Args:
        addon (str): Name of the addon.
        app (str): Name of the app.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Any | Problem
    """

    return sync_detailed(
        addon=addon,
        app=app,
        client=client,
    ).parsed


async def asyncio_detailed(
    addon: str,
    app: str,
    *,
    client: AuthenticatedClient | Client,
) -> Response[Any | Problem]:
    """Take the variables of an addon from an app

    Args:
        addon (str): Name of the addon.
        app (str): Name of the app.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Any | Problem]
    """

    kwargs = _get_kwargs(
        addon=addon,
        app=app,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    addon: str,
    app: str,
    *,
    client: AuthenticatedClient | Client,
) -> Any | Problem | None:
    """Take the variables of an addon from an app

    Args:
        addon (str): Name of the addon.
        app (str): Name of the app.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Any | Problem
    """

    return (
        await asyncio_detailed(
            addon=addon,
            app=app,
            client=client,
        )
    ).parsed
