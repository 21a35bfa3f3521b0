from typing import Literal, cast

ExecutionState = Literal["ended", "queued", "running", "waiting"]


def check_execution_state(value: str) -> ExecutionState:
    # A newer server may have more values.
    return cast(ExecutionState, value)
