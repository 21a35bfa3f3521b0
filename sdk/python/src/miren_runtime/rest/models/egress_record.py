from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="EgressRecord")


@_attrs_define
class EgressRecord:
    at: datetime.datetime
    """ Time. """
    permitted: bool
    """ The policy permitted it. """
    protocol: str
    """ dns, tls, http, https (with a secret) or tcp. """
    address: str | Unset = UNSET
    """ The address, of a connection. """
    name: str | Unset = UNSET
    """ The name, which the session chose. """
    port: int | Unset = UNSET
    """ The port. """
    reason: str | Unset = UNSET
    """ Reason of a refusal, or of a failure. """

    def to_dict(self) -> dict[str, Any]:
        at = self.at.isoformat()

        permitted = self.permitted

        protocol = self.protocol

        address = self.address

        name = self.name

        port = self.port

        reason = self.reason

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "at": at,
                "permitted": permitted,
                "protocol": protocol,
            }
        )
        if address is not UNSET:
            field_dict["address"] = address
        if name is not UNSET:
            field_dict["name"] = name
        if port is not UNSET:
            field_dict["port"] = port
        if reason is not UNSET:
            field_dict["reason"] = reason

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        at = datetime.datetime.fromisoformat(d.pop("at"))

        permitted = d.pop("permitted")

        protocol = d.pop("protocol")

        address = d.pop("address", UNSET)

        name = d.pop("name", UNSET)

        port = d.pop("port", UNSET)

        reason = d.pop("reason", UNSET)

        egress_record = cls(
            at=at,
            permitted=permitted,
            protocol=protocol,
            address=address,
            name=name,
            port=port,
            reason=reason,
        )

        return egress_record
