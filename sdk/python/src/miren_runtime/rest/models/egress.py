from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..models.egress_mode import EgressMode, check_egress_mode
from ..types import UNSET, Unset

T = TypeVar("T", bound="Egress")


@_attrs_define
class Egress:
    mode: EgressMode
    """ none; all; or what allow lists. """
    allow: list[str] | Unset = UNSET
    """ Networks, addresses, domains and *.DOMAIN, for list. """
    deny: list[str] | Unset = UNSET
    """ The same, for all and list; deny wins. """

    def to_dict(self) -> dict[str, Any]:
        mode: str = self.mode

        allow: list[str] | Unset = UNSET
        if not isinstance(self.allow, Unset):
            allow = self.allow

        deny: list[str] | Unset = UNSET
        if not isinstance(self.deny, Unset):
            deny = self.deny

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "mode": mode,
            }
        )
        if allow is not UNSET:
            field_dict["allow"] = allow
        if deny is not UNSET:
            field_dict["deny"] = deny

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        mode = check_egress_mode(d.pop("mode"))

        allow = cast(list[str], d.pop("allow", UNSET))

        deny = cast(list[str], d.pop("deny", UNSET))

        egress = cls(
            mode=mode,
            allow=allow,
            deny=deny,
        )

        return egress
