from typing import Literal, cast

ListContainersState = Literal["creating", "ended", "ending", "failed", "paused", "pausing", "running"]


def check_list_containers_state(value: str) -> ListContainersState:
    # A newer server may have more values.
    return cast(ListContainersState, value)
