from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

T = TypeVar("T", bound="NodeSummary")


@_attrs_define
class NodeSummary:
    cordoned: int
    """ Those on which an administrator lets no new sandboxes be placed. """
    full: int
    """ Those on which none are placed because their disk is nearly full. """
    nodes: int
    """ Number of nodes. """
    ready: int
    """ Those that are alive. """

    def to_dict(self) -> dict[str, Any]:
        cordoned = self.cordoned

        full = self.full

        nodes = self.nodes

        ready = self.ready

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "cordoned": cordoned,
                "full": full,
                "nodes": nodes,
                "ready": ready,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        cordoned = d.pop("cordoned")

        full = d.pop("full")

        nodes = d.pop("nodes")

        ready = d.pop("ready")

        node_summary = cls(
            cordoned=cordoned,
            full=full,
            nodes=nodes,
            ready=ready,
        )

        return node_summary
