from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.deployment import Deployment
    from ..models.traffic_share import TrafficShare


T = TypeVar("T", bound="App")


@_attrs_define
class App:
    created_at: datetime.datetime
    """ Time of its creation. """
    hosts: list[str]
    """ Hosts, with their paths, that lead to it. """
    id: str
    """ Id. """
    name: str
    """ Name. """
    ready: int
    """ Sandboxes of that version that are ready. """
    traffic: list[TrafficShare]
    """ Versions that get requests, the active one first, previews last. """
    wanted: int
    """ Sandboxes that it should have. """
    deployment: Deployment | Unset = UNSET
    last_deployment: Deployment | Unset = UNSET
    url: str | Unset = UNSET
    """ URL of the app. """
    version: int | Unset = UNSET
    """ Number of the version that serves; absent: none does. """

    def to_dict(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()

        hosts = self.hosts

        id = self.id

        name = self.name

        ready = self.ready

        traffic = []
        for traffic_item_data in self.traffic:
            traffic_item = traffic_item_data.to_dict()
            traffic.append(traffic_item)

        wanted = self.wanted

        deployment: dict[str, Any] | Unset = UNSET
        if not isinstance(self.deployment, Unset):
            deployment = self.deployment.to_dict()

        last_deployment: dict[str, Any] | Unset = UNSET
        if not isinstance(self.last_deployment, Unset):
            last_deployment = self.last_deployment.to_dict()

        url = self.url

        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "created_at": created_at,
                "hosts": hosts,
                "id": id,
                "name": name,
                "ready": ready,
                "traffic": traffic,
                "wanted": wanted,
            }
        )
        if deployment is not UNSET:
            field_dict["deployment"] = deployment
        if last_deployment is not UNSET:
            field_dict["last_deployment"] = last_deployment
        if url is not UNSET:
            field_dict["url"] = url
        if version is not UNSET:
            field_dict["version"] = version

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.deployment import Deployment  # noqa: PLC0415
        from ..models.traffic_share import TrafficShare  # noqa: PLC0415

        d = dict(src_dict)
        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        hosts = cast(list[str], d.pop("hosts"))

        id = d.pop("id")

        name = d.pop("name")

        ready = d.pop("ready")

        traffic = []
        _traffic = d.pop("traffic")
        for traffic_item_data in _traffic:
            traffic_item = TrafficShare.from_dict(traffic_item_data)

            traffic.append(traffic_item)

        wanted = d.pop("wanted")

        _deployment = d.pop("deployment", UNSET)
        deployment: Deployment | Unset
        if isinstance(_deployment, Unset):
            deployment = UNSET
        else:
            deployment = Deployment.from_dict(_deployment)

        _last_deployment = d.pop("last_deployment", UNSET)
        last_deployment: Deployment | Unset
        if isinstance(_last_deployment, Unset):
            last_deployment = UNSET
        else:
            last_deployment = Deployment.from_dict(_last_deployment)

        url = d.pop("url", UNSET)

        version = d.pop("version", UNSET)

        app = cls(
            created_at=created_at,
            hosts=hosts,
            id=id,
            name=name,
            ready=ready,
            traffic=traffic,
            wanted=wanted,
            deployment=deployment,
            last_deployment=last_deployment,
            url=url,
            version=version,
        )

        return app
