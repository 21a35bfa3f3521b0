from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.pool import Pool
from ...models.problem import Problem
from ...models.set_pool_input_body import SetPoolInputBody
from ...types import Response


def _get_kwargs(
    template: str,
    *,
    body: SetPoolInputBody,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}

    _kwargs: dict[str, Any] = {
        "method": "put",
        "url": "/pools/{template}".format(
            template=quote(str(template), safe=""),
        ),
    }

    _kwargs["json"] = body.to_dict()

    headers["Content-Type"] = "application/json"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Pool | Problem:
    if response.status_code == 200:
        response_200 = Pool.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> Response[Pool | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    template: str,
    *,
    client: AuthenticatedClient | Client,
    body: SetPoolInputBody,
) -> Response[Pool | Problem]:
    """Make or change the pool of a template

    Args:
        template (str): Name of the template.
        body (SetPoolInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Pool | Problem]
    """

    kwargs = _get_kwargs(
        template=template,
        body=body,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    template: str,
    *,
    client: AuthenticatedClient | Client,
    body: SetPoolInputBody,
) -> Pool | Problem | None:
    """Make or change the pool of a template

    Args:
        template (str): Name of the template.
        body (SetPoolInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Pool | Problem
    """

    return sync_detailed(
        template=template,
        client=client,
        body=body,
    ).parsed


async def asyncio_detailed(
    template: str,
    *,
    client: AuthenticatedClient | Client,
    body: SetPoolInputBody,
) -> Response[Pool | Problem]:
    """Make or change the pool of a template

    Args:
        template (str): Name of the template.
        body (SetPoolInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Pool | Problem]
    """

    kwargs = _get_kwargs(
        template=template,
        body=body,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    template: str,
    *,
    client: AuthenticatedClient | Client,
    body: SetPoolInputBody,
) -> Pool | Problem | None:
    """Make or change the pool of a template

    Args:
        template (str): Name of the template.
        body (SetPoolInputBody):

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Pool | Problem
    """

    return (
        await asyncio_detailed(
            template=template,
            client=client,
            body=body,
        )
    ).parsed
