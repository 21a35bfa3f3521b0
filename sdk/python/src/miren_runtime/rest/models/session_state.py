from typing import Literal, cast

SessionState = Literal["creating", "ended", "ending", "failed", "paused", "pausing", "running"]


def check_session_state(value: str) -> SessionState:
    # A newer server may have more values.
    return cast(SessionState, value)
