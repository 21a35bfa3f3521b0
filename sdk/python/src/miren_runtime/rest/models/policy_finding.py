from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="PolicyFinding")


@_attrs_define
class PolicyFinding:
    id: str
    """ Its id. """
    kind: str
    """ Kind of what is concerned. """
    message: str
    """ What is wrong. """
    name: str | Unset = UNSET
    """ Its name. """
    rule: str | Unset = UNSET
    """ The rule that it violates; absent: it violates none, but deserves a look. """

    def to_dict(self) -> dict[str, Any]:
        id = self.id

        kind = self.kind

        message = self.message

        name = self.name

        rule = self.rule

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "id": id,
                "kind": kind,
                "message": message,
            }
        )
        if name is not UNSET:
            field_dict["name"] = name
        if rule is not UNSET:
            field_dict["rule"] = rule

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        id = d.pop("id")

        kind = d.pop("kind")

        message = d.pop("message")

        name = d.pop("name", UNSET)

        rule = d.pop("rule", UNSET)

        policy_finding = cls(
            id=id,
            kind=kind,
            message=message,
            name=name,
            rule=rule,
        )

        return policy_finding
