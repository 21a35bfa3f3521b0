from http import HTTPStatus
from typing import Any

import httpx

from ...client import AuthenticatedClient, Client
from ...models.deployment_list import DeploymentList
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    app: str | Unset = UNSET,
    phase: str | Unset = UNSET,
    limit: int | Unset = 50,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["app"] = app

    params["phase"] = phase

    params["limit"] = limit

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/deployments",
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> DeploymentList | Problem:
    if response.status_code == 200:
        response_200 = DeploymentList.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[DeploymentList | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient | Client,
    app: str | Unset = UNSET,
    phase: str | Unset = UNSET,
    limit: int | Unset = 50,
) -> Response[DeploymentList | Problem]:
    """List the deployments of the project

    Args:
        app (str | Unset): Only deployments of this app; its name.
        phase (str | Unset): Only deployments in this phase.
        limit (int | Unset): Most deployments of the answer. Default: 50.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[DeploymentList | Problem]
    """

    kwargs = _get_kwargs(
        app=app,
        phase=phase,
        limit=limit,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    *,
    client: AuthenticatedClient | Client,
    app: str | Unset = UNSET,
    phase: str | Unset = UNSET,
    limit: int | Unset = 50,
) -> DeploymentList | Problem | None:
    """List the deployments of the project

    Args:
        app (str | Unset): Only deployments of this app; its name.
        phase (str | Unset): Only deployments in this phase.
        limit (int | Unset): Most deployments of the answer. Default: 50.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        DeploymentList | Problem
    """

    return sync_detailed(
        client=client,
        app=app,
        phase=phase,
        limit=limit,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient | Client,
    app: str | Unset = UNSET,
    phase: str | Unset = UNSET,
    limit: int | Unset = 50,
) -> Response[DeploymentList | Problem]:
    """List the deployments of the project

    Args:
        app (str | Unset): Only deployments of this app; its name.
        phase (str | Unset): Only deployments in this phase.
        limit (int | Unset): Most deployments of the answer. Default: 50.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[DeploymentList | Problem]
    """

    kwargs = _get_kwargs(
        app=app,
        phase=phase,
        limit=limit,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    *,
    client: AuthenticatedClient | Client,
    app: str | Unset = UNSET,
    phase: str | Unset = UNSET,
    limit: int | Unset = 50,
) -> DeploymentList | Problem | None:
    """List the deployments of the project

    Args:
        app (str | Unset): Only deployments of this app; its name.
        phase (str | Unset): Only deployments in this phase.
        limit (int | Unset): Most deployments of the answer. Default: 50.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        DeploymentList | Problem
    """

    return (
        await asyncio_detailed(
            client=client,
            app=app,
            phase=phase,
            limit=limit,
        )
    ).parsed
