from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.create_key_input_body_roles_item import (
    CreateKeyInputBodyRolesItem,
    check_create_key_input_body_roles_item,
)
from ..types import UNSET, Unset

T = TypeVar("T", bound="CreateKeyInputBody")


@_attrs_define
class CreateKeyInputBody:
    name: str
    """ Name. """
    max_executions: int | Unset = UNSET
    """ Most executions at the same time; absent: unlimited. """
    max_sandboxes: int | Unset = UNSET
    """ Most sandboxes at the same time, those of its executions included; absent: unlimited. """
    rate: int | Unset = UNSET
    """ Most requests per second; absent: those of the server. """
    roles: list[CreateKeyInputBodyRolesItem] | Unset = UNSET
    """ Roles; absent: agent. """
    ttl_seconds: int | Unset = UNSET
    """ Validity; absent: until it is deleted. """

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        max_executions = self.max_executions

        max_sandboxes = self.max_sandboxes

        rate = self.rate

        roles: list[str] | Unset = UNSET
        if not isinstance(self.roles, Unset):
            roles = []
            for roles_item_data in self.roles:
                roles_item: str = roles_item_data
                roles.append(roles_item)

        ttl_seconds = self.ttl_seconds

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "name": name,
            }
        )
        if max_executions is not UNSET:
            field_dict["max_executions"] = max_executions
        if max_sandboxes is not UNSET:
            field_dict["max_sandboxes"] = max_sandboxes
        if rate is not UNSET:
            field_dict["rate"] = rate
        if roles is not UNSET:
            field_dict["roles"] = roles
        if ttl_seconds is not UNSET:
            field_dict["ttl_seconds"] = ttl_seconds

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        name = d.pop("name")

        max_executions = d.pop("max_executions", UNSET)

        max_sandboxes = d.pop("max_sandboxes", UNSET)

        rate = d.pop("rate", UNSET)

        _roles = d.pop("roles", UNSET)
        roles: list[CreateKeyInputBodyRolesItem] | Unset = UNSET
        if _roles is not UNSET:
            roles = []
            for roles_item_data in _roles:
                roles_item = check_create_key_input_body_roles_item(roles_item_data)

                roles.append(roles_item)

        ttl_seconds = d.pop("ttl_seconds", UNSET)

        create_key_input_body = cls(
            name=name,
            max_executions=max_executions,
            max_sandboxes=max_sandboxes,
            rate=rate,
            roles=roles,
            ttl_seconds=ttl_seconds,
        )

        return create_key_input_body
