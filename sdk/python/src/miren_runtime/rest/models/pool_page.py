from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.pool import Pool


T = TypeVar("T", bound="PoolPage")


@_attrs_define
class PoolPage:
    pools: list[Pool]
    """ Pools, in the order of their ids. """
    next_cursor: str | Unset = UNSET
    """ For the next page; absent on the last. """

    def to_dict(self) -> dict[str, Any]:
        pools = []
        for pools_item_data in self.pools:
            pools_item = pools_item_data.to_dict()
            pools.append(pools_item)

        next_cursor = self.next_cursor

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "pools": pools,
            }
        )
        if next_cursor is not UNSET:
            field_dict["next_cursor"] = next_cursor

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.pool import Pool  # noqa: PLC0415

        d = dict(src_dict)
        pools = []
        _pools = d.pop("pools")
        for pools_item_data in _pools:
            pools_item = Pool.from_dict(pools_item_data)

            pools.append(pools_item)

        next_cursor = d.pop("next_cursor", UNSET)

        pool_page = cls(
            pools=pools,
            next_cursor=next_cursor,
        )

        return pool_page
