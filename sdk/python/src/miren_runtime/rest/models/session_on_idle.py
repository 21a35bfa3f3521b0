from typing import Literal, cast

SessionOnIdle = Literal["pause", "stop"]


def check_session_on_idle(value: str) -> SessionOnIdle:
    # A newer server may have more values.
    return cast(SessionOnIdle, value)
