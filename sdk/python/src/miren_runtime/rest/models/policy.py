from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..models.policy_max_egress import PolicyMaxEgress, check_policy_max_egress
from ..types import UNSET, Unset

T = TypeVar("T", bound="Policy")


@_attrs_define
class Policy:
    confine: bool
    """ Programs run in the second layer inside the session only. """
    private_previews: bool
    """ Ports are reached with a token only. """
    max_cpu_millis: int | Unset = UNSET
    """ Most CPU of a session, in thousandths; absent: any. """
    max_disk_bytes: int | Unset = UNSET
    """ Largest root disk of a session; absent: any. """
    max_egress: PolicyMaxEgress | Unset = UNSET
    """ The widest network of a session; absent: any. """
    max_key_ttl_seconds: int | Unset = UNSET
    """ Longest validity of a new key, which must expire; absent: any. """
    max_memory_bytes: int | Unset = UNSET
    """ Most memory of a session; absent: any. """
    max_pids: int | Unset = UNSET
    """ Most processes of a session; absent: any. """
    max_ttl_seconds: int | Unset = UNSET
    """ Longest time to live of a session; absent: any. """
    networks: list[str] | Unset = UNSET
    """ With listed: networks, addresses and domains that a session may list. """
    templates: list[str] | Unset = UNSET
    """ Names of the templates of which sandboxes are made; absent: any, and images. """

    def to_dict(self) -> dict[str, Any]:
        confine = self.confine

        private_previews = self.private_previews

        max_cpu_millis = self.max_cpu_millis

        max_disk_bytes = self.max_disk_bytes

        max_egress: str | Unset = UNSET
        if not isinstance(self.max_egress, Unset):
            max_egress = self.max_egress

        max_key_ttl_seconds = self.max_key_ttl_seconds

        max_memory_bytes = self.max_memory_bytes

        max_pids = self.max_pids

        max_ttl_seconds = self.max_ttl_seconds

        networks: list[str] | Unset = UNSET
        if not isinstance(self.networks, Unset):
            networks = self.networks

        templates: list[str] | Unset = UNSET
        if not isinstance(self.templates, Unset):
            templates = self.templates

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "confine": confine,
                "private_previews": private_previews,
            }
        )
        if max_cpu_millis is not UNSET:
            field_dict["max_cpu_millis"] = max_cpu_millis
        if max_disk_bytes is not UNSET:
            field_dict["max_disk_bytes"] = max_disk_bytes
        if max_egress is not UNSET:
            field_dict["max_egress"] = max_egress
        if max_key_ttl_seconds is not UNSET:
            field_dict["max_key_ttl_seconds"] = max_key_ttl_seconds
        if max_memory_bytes is not UNSET:
            field_dict["max_memory_bytes"] = max_memory_bytes
        if max_pids is not UNSET:
            field_dict["max_pids"] = max_pids
        if max_ttl_seconds is not UNSET:
            field_dict["max_ttl_seconds"] = max_ttl_seconds
        if networks is not UNSET:
            field_dict["networks"] = networks
        if templates is not UNSET:
            field_dict["templates"] = templates

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        confine = d.pop("confine")

        private_previews = d.pop("private_previews")

        max_cpu_millis = d.pop("max_cpu_millis", UNSET)

        max_disk_bytes = d.pop("max_disk_bytes", UNSET)

        _max_egress = d.pop("max_egress", UNSET)
        max_egress: PolicyMaxEgress | Unset
        if isinstance(_max_egress, Unset):
            max_egress = UNSET
        else:
            max_egress = check_policy_max_egress(_max_egress)

        max_key_ttl_seconds = d.pop("max_key_ttl_seconds", UNSET)

        max_memory_bytes = d.pop("max_memory_bytes", UNSET)

        max_pids = d.pop("max_pids", UNSET)

        max_ttl_seconds = d.pop("max_ttl_seconds", UNSET)

        networks = cast(list[str], d.pop("networks", UNSET))

        templates = cast(list[str], d.pop("templates", UNSET))

        policy = cls(
            confine=confine,
            private_previews=private_previews,
            max_cpu_millis=max_cpu_millis,
            max_disk_bytes=max_disk_bytes,
            max_egress=max_egress,
            max_key_ttl_seconds=max_key_ttl_seconds,
            max_memory_bytes=max_memory_bytes,
            max_pids=max_pids,
            max_ttl_seconds=max_ttl_seconds,
            networks=networks,
            templates=templates,
        )

        return policy
