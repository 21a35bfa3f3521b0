from typing import Literal, cast

AddonDetailsState = Literal["deleting", "failed", "pending", "ready", "rotating"]


def check_addon_details_state(value: str) -> AddonDetailsState:
    # A newer server may have more values.
    return cast(AddonDetailsState, value)
