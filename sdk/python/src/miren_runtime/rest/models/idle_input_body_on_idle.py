from typing import Literal, cast

IdleInputBodyOnIdle = Literal["pause", "stop"]


def check_idle_input_body_on_idle(value: str) -> IdleInputBodyOnIdle:
    # A newer server may have more values.
    return cast(IdleInputBodyOnIdle, value)
