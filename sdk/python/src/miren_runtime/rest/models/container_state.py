from typing import Literal, cast

ContainerState = Literal["creating", "ended", "ending", "failed", "paused", "pausing", "running"]


def check_container_state(value: str) -> ContainerState:
    # A newer server may have more values.
    return cast(ContainerState, value)
