from typing import Literal, cast

VolumeFileSystem = Literal["ext4", "xfs"]


def check_volume_file_system(value: str) -> VolumeFileSystem:
    # A newer server may have more values.
    return cast(VolumeFileSystem, value)
