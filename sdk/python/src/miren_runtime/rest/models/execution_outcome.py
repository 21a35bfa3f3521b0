from typing import Literal, cast

ExecutionOutcome = Literal["cancelled", "failed", "interrupted", "oom", "sandbox", "setup", "succeeded", "timeout"]


def check_execution_outcome(value: str) -> ExecutionOutcome:
    # A newer server may have more values.
    return cast(ExecutionOutcome, value)
