from typing import Literal, cast

VolumeState = Literal["deleting", "failed", "pending", "ready"]


def check_volume_state(value: str) -> VolumeState:
    # A newer server may have more values.
    return cast(VolumeState, value)
