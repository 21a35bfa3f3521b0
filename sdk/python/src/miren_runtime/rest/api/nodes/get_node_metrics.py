import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ...client import AuthenticatedClient, Client
from ...models.metric_history import MetricHistory
from ...models.problem import Problem
from ...types import UNSET, Response, Unset


def _get_kwargs(
    node: str,
    *,
    from_: datetime.datetime | Unset = UNSET,
    to: datetime.datetime | Unset = UNSET,
    step: int | Unset = UNSET,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    json_from_: str | Unset = UNSET
    if not isinstance(from_, Unset):
        json_from_ = from_.isoformat()
    params["from"] = json_from_

    json_to: str | Unset = UNSET
    if not isinstance(to, Unset):
        json_to = to.isoformat()
    params["to"] = json_to

    params["step"] = step

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/nodes/{node}/metrics".format(
            node=quote(str(node), safe=""),
        ),
        "params": params,
    }

    return _kwargs


def _parse_response(*, client: AuthenticatedClient | Client, response: httpx.Response) -> MetricHistory | Problem:
    if response.status_code == 200:
        response_200 = MetricHistory.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Problem.from_dict(response.json())

        return response_400

    response_default = Problem.from_dict(response.json())

    return response_default


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[MetricHistory | Problem]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    node: str,
    *,
    client: AuthenticatedClient | Client,
    from_: datetime.datetime | Unset = UNSET,
    to: datetime.datetime | Unset = UNSET,
    step: int | Unset = UNSET,
) -> Response[MetricHistory | Problem]:
    """Read the history of what the machine of a node used, which only keys with roles in all projects may

    Args:
        node (str): Name or id of the node.
        from_ (datetime.datetime | Unset): Time of the first value, which is up to a step later if
            to or step are absent; absent: an hour before to.
        to (datetime.datetime | Unset): Time of the last value; absent: now.
        step (int | Unset): Seconds between two values, of which there are at most 2,000; absent:
            so many that there are at most 240.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[MetricHistory | Problem]
    """

    kwargs = _get_kwargs(
        node=node,
        from_=from_,
        to=to,
        step=step,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    node: str,
    *,
    client: AuthenticatedClient | Client,
    from_: datetime.datetime | Unset = UNSET,
    to: datetime.datetime | Unset = UNSET,
    step: int | Unset = UNSET,
) -> MetricHistory | Problem | None:
    """Read the history of what the machine of a node used, which only keys with roles in all projects may

    Args:
        node (str): Name or id of the node.
        from_ (datetime.datetime | Unset): Time of the first value, which is up to a step later if
            to or step are absent; absent: an hour before to.
        to (datetime.datetime | Unset): Time of the last value; absent: now.
        step (int | Unset): Seconds between two values, of which there are at most 2,000; absent:
            so many that there are at most 240.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        MetricHistory | Problem
    """

    return sync_detailed(
        node=node,
        client=client,
        from_=from_,
        to=to,
        step=step,
    ).parsed


async def asyncio_detailed(
    node: str,
    *,
    client: AuthenticatedClient | Client,
    from_: datetime.datetime | Unset = UNSET,
    to: datetime.datetime | Unset = UNSET,
    step: int | Unset = UNSET,
) -> Response[MetricHistory | Problem]:
    """Read the history of what the machine of a node used, which only keys with roles in all projects may

    Args:
        node (str): Name or id of the node.
        from_ (datetime.datetime | Unset): Time of the first value, which is up to a step later if
            to or step are absent; absent: an hour before to.
        to (datetime.datetime | Unset): Time of the last value; absent: now.
        step (int | Unset): Seconds between two values, of which there are at most 2,000; absent:
            so many that there are at most 240.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[MetricHistory | Problem]
    """

    kwargs = _get_kwargs(
        node=node,
        from_=from_,
        to=to,
        step=step,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    node: str,
    *,
    client: AuthenticatedClient | Client,
    from_: datetime.datetime | Unset = UNSET,
    to: datetime.datetime | Unset = UNSET,
    step: int | Unset = UNSET,
) -> MetricHistory | Problem | None:
    """Read the history of what the machine of a node used, which only keys with roles in all projects may

    Args:
        node (str): Name or id of the node.
        from_ (datetime.datetime | Unset): Time of the first value, which is up to a step later if
            to or step are absent; absent: an hour before to.
        to (datetime.datetime | Unset): Time of the last value; absent: now.
        step (int | Unset): Seconds between two values, of which there are at most 2,000; absent:
            so many that there are at most 240.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        MetricHistory | Problem
    """

    return (
        await asyncio_detailed(
            node=node,
            client=client,
            from_=from_,
            to=to,
            step=step,
        )
    ).parsed
