from typing import Literal, cast

StepKind = Literal["copy", "env", "from", "from_template", "run", "user", "workdir"]


def check_step_kind(value: str) -> StepKind:
    # A newer server may have more values.
    return cast(StepKind, value)
