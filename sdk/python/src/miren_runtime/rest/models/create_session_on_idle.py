from typing import Literal, cast

CreateSessionOnIdle = Literal["pause", "stop"]


def check_create_session_on_idle(value: str) -> CreateSessionOnIdle:
    # A newer server may have more values.
    return cast(CreateSessionOnIdle, value)
