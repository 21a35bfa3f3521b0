from typing import Literal, cast

ListSessionsState = Literal["creating", "ended", "ending", "failed", "paused", "pausing", "running"]


def check_list_sessions_state(value: str) -> ListSessionsState:
    # A newer server may have more values.
    return cast(ListSessionsState, value)
