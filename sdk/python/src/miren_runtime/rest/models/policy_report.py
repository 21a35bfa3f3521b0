from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.policy_finding import PolicyFinding


T = TypeVar("T", bound="PolicyReport")


@_attrs_define
class PolicyReport:
    findings: list[PolicyFinding]
    """ Findings, violations first. """
    violations: int
    """ Number of findings with a rule. """

    def to_dict(self) -> dict[str, Any]:
        findings = []
        for findings_item_data in self.findings:
            findings_item = findings_item_data.to_dict()
            findings.append(findings_item)

        violations = self.violations

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "findings": findings,
                "violations": violations,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.policy_finding import PolicyFinding  # noqa: PLC0415

        d = dict(src_dict)
        findings = []
        _findings = d.pop("findings")
        for findings_item_data in _findings:
            findings_item = PolicyFinding.from_dict(findings_item_data)

            findings.append(findings_item)

        violations = d.pop("violations")

        policy_report = cls(
            findings=findings,
            violations=violations,
        )

        return policy_report
