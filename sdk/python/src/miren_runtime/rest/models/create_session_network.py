from typing import Literal, cast

CreateSessionNetwork = Literal["bridge", "none"]


def check_create_session_network(value: str) -> CreateSessionNetwork:
    # A newer server may have more values.
    return cast(CreateSessionNetwork, value)
