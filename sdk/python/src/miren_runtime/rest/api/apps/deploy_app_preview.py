from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.app_preview_source import AppPreviewSource
from ...models.deployment import Deployment
from ...models.problem import Problem
from ...types import Response


def _get_kwargs(
    app: str,
    preview: str,
    *,
    body: AppPreviewSource,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}

    _kwargs: dict[str, Any] = {
        "method": "put",
        "url": "/apps/{app}/previews/{preview}".format(
            app=quote(str(app), safe=""),
            preview=quote(str(preview), safe=""),
        ),
    }

    _kwargs["json"] = body.to_dict()

    headers["Content-Type"] = "application/json"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Deployment | Problem:
    if response.status_code == 202:
        response_202 = Deployment.from_dict(response.json())

        return response_202

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[Deployment | Problem]:
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
    body: AppPreviewSource,
) -> Response[Deployment | Problem]:
    """Begin to deploy a source as a preview of an app, which replaces the one of that name. The app is
    made if it does not exist

    Args:
        app (str): Name of the app.
        preview (str): Name of the preview.
        body (AppPreviewSource):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Deployment | Problem]
    """

    kwargs = _get_kwargs(
        app=app,
        preview=preview,
        body=body,
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
    body: AppPreviewSource,
) -> Deployment | Problem | None:
    """Begin to deploy a source as a preview of an app, which replaces the one of that name. The app is
    made if it does not exist

    Args:
        app (str): Name of the app.
        preview (str): Name of the preview.
        body (AppPreviewSource):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Deployment | Problem
    """

    return sync_detailed(
        app=app,
        preview=preview,
        client=client,
        body=body,
    ).parsed


async def asyncio_detailed(
    app: str,
    preview: str,
    *,
    client: AuthenticatedClient | Client,
    body: AppPreviewSource,
) -> Response[Deployment | Problem]:
    """Begin to deploy a source as a preview of an app, which replaces the one of that name. The app is
    made if it does not exist

    Args:
        app (str): Name of the app.
        preview (str): Name of the preview.
        body (AppPreviewSource):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Deployment | Problem]
    """

    kwargs = _get_kwargs(
        app=app,
        preview=preview,
        body=body,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    app: str,
    preview: str,
    *,
    client: AuthenticatedClient | Client,
    body: AppPreviewSource,
) -> Deployment | Problem | None:
    """Begin to deploy a source as a preview of an app, which replaces the one of that name. The app is
    made if it does not exist

    Args:
        app (str): Name of the app.
        preview (str): Name of the preview.
        body (AppPreviewSource):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Deployment | Problem
    """

    return (
        await asyncio_detailed(
            app=app,
            preview=preview,
            client=client,
            body=body,
        )
    ).parsed
