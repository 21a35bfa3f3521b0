from typing import Literal, cast

VolumeSnapshotState = Literal["deleting", "failed", "pending", "ready"]


def check_volume_snapshot_state(value: str) -> VolumeSnapshotState:
    # A newer server may have more values.
    return cast(VolumeSnapshotState, value)
