from typing import Literal, cast

TemplateVersionState = Literal["building", "failed", "pending", "ready"]


def check_template_version_state(value: str) -> TemplateVersionState:
    # A newer server may have more values.
    return cast(TemplateVersionState, value)
