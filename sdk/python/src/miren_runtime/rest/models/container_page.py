from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.container import Container


T = TypeVar("T", bound="ContainerPage")


@_attrs_define
class ContainerPage:
    containers: list[Container]
    """ Containers, in the order of their ids. """
    next_cursor: str | Unset = UNSET
    """ For the next page; absent on the last. """

    def to_dict(self) -> dict[str, Any]:
        containers = []
        for containers_item_data in self.containers:
            containers_item = containers_item_data.to_dict()
            containers.append(containers_item)

        next_cursor = self.next_cursor

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "containers": containers,
            }
        )
        if next_cursor is not UNSET:
            field_dict["next_cursor"] = next_cursor

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.container import Container  # noqa: PLC0415

        d = dict(src_dict)
        containers = []
        _containers = d.pop("containers")
        for containers_item_data in _containers:
            containers_item = Container.from_dict(containers_item_data)

            containers.append(containers_item)

        next_cursor = d.pop("next_cursor", UNSET)

        container_page = cls(
            containers=containers,
            next_cursor=next_cursor,
        )

        return container_page
