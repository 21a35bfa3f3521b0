from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.problem import Problem
from ...models.template_build import TemplateBuild
from ...models.template_version import TemplateVersion
from ...types import UNSET, Response, Unset


def _get_kwargs(
    name: str,
    *,
    body: TemplateBuild,
    wait: int | Unset = 0,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}

    params: dict[str, Any] = {}

    params["wait"] = wait

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "put",
        "url": "/templates/{name}".format(
            name=quote(str(name), safe=""),
        ),
        "params": params,
    }

    _kwargs["json"] = body.to_dict()

    headers["Content-Type"] = "application/json"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Problem | TemplateVersion:
    if response.status_code == 202:
        response_202 = TemplateVersion.from_dict(response.json())

        return response_202

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[Problem | TemplateVersion]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    name: str,
    *,
    client: AuthenticatedClient | Client,
    body: TemplateBuild,
    wait: int | Unset = 0,
) -> Response[Problem | TemplateVersion]:
    """Begin to build a new version of a template, which is made if it does not exist

    Args:
        name (str): Name of the template.
        wait (int | Unset): Longest time until the version is built or has failed, in seconds.
            Then it is returned as it is. Default: 0.
        body (TemplateBuild):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | TemplateVersion]
    """

    kwargs = _get_kwargs(
        name=name,
        body=body,
        wait=wait,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    name: str,
    *,
    client: AuthenticatedClient | Client,
    body: TemplateBuild,
    wait: int | Unset = 0,
) -> Problem | TemplateVersion | None:
    """Begin to build a new version of a template, which is made if it does not exist

    Args:
        name (str): Name of the template.
        wait (int | Unset): Longest time until the version is built or has failed, in seconds.
            Then it is returned as it is. Default: 0.
        body (TemplateBuild):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | TemplateVersion
    """

    return sync_detailed(
        name=name,
        client=client,
        body=body,
        wait=wait,
    ).parsed


async def asyncio_detailed(
    name: str,
    *,
    client: AuthenticatedClient | Client,
    body: TemplateBuild,
    wait: int | Unset = 0,
) -> Response[Problem | TemplateVersion]:
    """Begin to build a new version of a template, which is made if it does not exist

    Args:
        name (str): Name of the template.
        wait (int | Unset): Longest time until the version is built or has failed, in seconds.
            Then it is returned as it is. Default: 0.
        body (TemplateBuild):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | TemplateVersion]
    """

    kwargs = _get_kwargs(
        name=name,
        body=body,
        wait=wait,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    name: str,
    *,
    client: AuthenticatedClient | Client,
    body: TemplateBuild,
    wait: int | Unset = 0,
) -> Problem | TemplateVersion | None:
    """Begin to build a new version of a template, which is made if it does not exist

    Args:
        name (str): Name of the template.
        wait (int | Unset): Longest time until the version is built or has failed, in seconds.
            Then it is returned as it is. Default: 0.
        body (TemplateBuild):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | TemplateVersion
    """

    return (
        await asyncio_detailed(
            name=name,
            client=client,
            body=body,
            wait=wait,
        )
    ).parsed
