from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

T = TypeVar("T", bound="Ports")


@_attrs_define
class Ports:
    ports: list[int]
    """ TCP ports on which its processes listen, in order. """

    def to_dict(self) -> dict[str, Any]:
        ports = self.ports

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "ports": ports,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        ports = cast(list[int], d.pop("ports"))

        ports = cls(
            ports=ports,
        )

        return ports
