from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.problem import Problem
from ...models.template_details import TemplateDetails
from ...types import Response


def _get_kwargs(
    name: str,
    alias: str,
) -> dict[str, Any]:

    _kwargs: dict[str, Any] = {
        "method": "put",
        "url": "/templates/{name}/aliases/{alias}".format(
            name=quote(str(name), safe=""),
            alias=quote(str(alias), safe=""),
        ),
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Problem | TemplateDetails:
    if response.status_code == 200:
        response_200 = TemplateDetails.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[Problem | TemplateDetails]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    name: str,
    alias: str,
    *,
    client: AuthenticatedClient | Client,
) -> Response[Problem | TemplateDetails]:
    """Give a template another name

    Args:
        name (str): Name of the template.
        alias (str): The other name.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | TemplateDetails]
    """

    kwargs = _get_kwargs(
        name=name,
        alias=alias,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    name: str,
    alias: str,
    *,
    client: AuthenticatedClient | Client,
) -> Problem | TemplateDetails | None:
    """Give a template another name

    Args:
        name (str): Name of the template.
        alias (str): The other name.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | TemplateDetails
    """

    return sync_detailed(
        name=name,
        alias=alias,
        client=client,
    ).parsed


async def asyncio_detailed(
    name: str,
    alias: str,
    *,
    client: AuthenticatedClient | Client,
) -> Response[Problem | TemplateDetails]:
    """Give a template another name

    Args:
        name (str): Name of the template.
        alias (str): The other name.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Problem | TemplateDetails]
    """

    kwargs = _get_kwargs(
        name=name,
        alias=alias,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    name: str,
    alias: str,
    *,
    client: AuthenticatedClient | Client,
) -> Problem | TemplateDetails | None:
    """Give a template another name

    Args:
        name (str): Name of the template.
        alias (str): The other name.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Problem | TemplateDetails
    """

    return (
        await asyncio_detailed(
            name=name,
            alias=alias,
            client=client,
        )
    ).parsed
