from typing import Literal, cast

AddonState = Literal["deleting", "failed", "pending", "ready", "rotating"]


def check_addon_state(value: str) -> AddonState:
    # A newer server may have more values.
    return cast(AddonState, value)
