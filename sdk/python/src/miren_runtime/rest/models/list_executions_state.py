from typing import Literal, cast

ListExecutionsState = Literal["ended", "queued", "running", "waiting"]


def check_list_executions_state(value: str) -> ListExecutionsState:
    # A newer server may have more values.
    return cast(ListExecutionsState, value)
