from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.problem import Problem
from ...types import Response


def _get_kwargs(
    app: str,
    preview: str,
) -> dict[str, Any]:

    _kwargs: dict[str, Any] = {
        "method": "delete",
        "url": "/apps/{app}/previews/{preview}".format(
            app=quote(str(app), safe=""),
            preview=quote(str(preview), safe=""),
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
    app: str,
    preview: str,
    *,
    client: AuthenticatedClient | Client,
) -> Response[Any | Problem]:
    """End a preview of an app

    Args:
        app (str): Name of the app.
        preview (str): Name of the preview.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Any | Problem]
    """

    kwargs = _get_kwargs(
        app=app,
        preview=preview,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    app: str,
    preview: str,
    *,
    client: AuthenticatedClient | Client,
) -> Any | Problem | None:
    """End a preview of an app

    Args:
        app (str): Name of the app.
        preview (str): Name of the preview.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Any | Problem
    """

    return sync_detailed(
        app=app,
        preview=preview,
        client=client,
    ).parsed


async def asyncio_detailed(
    app: str,
    preview: str,
    *,
    client: AuthenticatedClient | Client,
) -> Response[Any | Problem]:
    """End a preview of an app

    Args:
        app (str): Name of the app.
        preview (str): Name of the preview.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Any | Problem]
    """

    kwargs = _get_kwargs(
        app=app,
        preview=preview,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    app: str,
    preview: str,
    *,
    client: AuthenticatedClient | Client,
) -> Any | Problem | None:
    """End a preview of an app

    Args:
        app (str): Name of the app.
        preview (str): Name of the preview.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Any | Problem
    """

    return (
        await asyncio_detailed(
            app=app,
            preview=preview,
            client=client,
        )
    ).parsed
