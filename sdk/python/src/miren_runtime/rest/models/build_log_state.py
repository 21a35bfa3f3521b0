from typing import Literal, cast

BuildLogState = Literal["canceled", "failed", "pending", "running", "succeeded"]


def check_build_log_state(value: str) -> BuildLogState:
    # A newer server may have more values.
    return cast(BuildLogState, value)
