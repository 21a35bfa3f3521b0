from typing import Literal, cast

SnapshotState = Literal["failed", "pending", "ready"]


def check_snapshot_state(value: str) -> SnapshotState:
    # A newer server may have more values.
    return cast(SnapshotState, value)
