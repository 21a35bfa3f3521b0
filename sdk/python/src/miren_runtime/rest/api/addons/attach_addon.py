from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.addon_use import AddonUse
from ...models.attach_addon_input_body import AttachAddonInputBody
from ...models.problem import Problem
from ...types import Response


def _get_kwargs(
    addon: str,
    app: str,
    *,
    body: AttachAddonInputBody,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}

    _kwargs: dict[str, Any] = {
        "method": "put",
        "url": "/addons/{addon}/apps/{app}".format(
            addon=quote(str(addon), safe=""),
            app=quote(str(app), safe=""),
        ),
    }

    _kwargs["json"] = body.to_dict()

    headers["Content-Type"] = "application/json"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> AddonUse | Problem:
    if response.status_code == 200:
        response_200 = AddonUse.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[AddonUse | Problem]:
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
    body: AttachAddonInputBody,
) -> Response[AddonUse | Problem]:
    """Give an app the variables of an addon

    Args:
        addon (str): Name of the addon.
        app (str): Name of the app.
        body (AttachAddonInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[AddonUse | Problem]
    """

    kwargs = _get_kwargs(
        addon=addon,
        app=app,
        body=body,
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
    body: AttachAddonInputBody,
) -> AddonUse | Problem | None:
    """Give an app the variables of an addon

    Args:
        addon (str): Name of the addon.
        app (str): Name of the app.
        body (AttachAddonInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        AddonUse | Problem
    """

    return sync_detailed(
        addon=addon,
        app=app,
        client=client,
        body=body,
    ).parsed


async def asyncio_detailed(
    addon: str,
    app: str,
    *,
    client: AuthenticatedClient | Client,
    body: AttachAddonInputBody,
) -> Response[AddonUse | Problem]:
    """Give an app the variables of an addon

    Args:
        addon (str): Name of the addon.
        app (str): Name of the app.
        body (AttachAddonInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[AddonUse | Problem]
    """

    kwargs = _get_kwargs(
        addon=addon,
        app=app,
        body=body,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    addon: str,
    app: str,
    *,
    client: AuthenticatedClient | Client,
    body: AttachAddonInputBody,
) -> AddonUse | Problem | None:
    """Give an app the variables of an addon

    Args:
        addon (str): Name of the addon.
        app (str): Name of the app.
        body (AttachAddonInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        AddonUse | Problem
    """

    return (
        await asyncio_detailed(
            addon=addon,
            app=app,
            client=client,
            body=body,
        )
    ).parsed
