from typing import Literal, cast

AddonBackupState = Literal["deleting", "failed", "pending", "ready"]


def check_addon_backup_state(value: str) -> AddonBackupState:
    # A newer server may have more values.
    return cast(AddonBackupState, value)
