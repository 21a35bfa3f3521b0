from typing import Literal, cast

CreateSessionMode = Literal["ephemeral", "persistent"]


def check_create_session_mode(value: str) -> CreateSessionMode:
    # A newer server may have more values.
    return cast(CreateSessionMode, value)
