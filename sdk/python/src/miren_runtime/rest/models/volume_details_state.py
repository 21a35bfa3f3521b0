from typing import Literal, cast

VolumeDetailsState = Literal["deleting", "failed", "pending", "ready"]


def check_volume_details_state(value: str) -> VolumeDetailsState:
    # A newer server may have more values.
    return cast(VolumeDetailsState, value)
