from typing import Literal, cast

SessionMode = Literal["ephemeral", "persistent"]


def check_session_mode(value: str) -> SessionMode:
    # A newer server may have more values.
    return cast(SessionMode, value)
