from typing import Literal, cast

VolumeDetailsFileSystem = Literal["ext4", "xfs"]


def check_volume_details_file_system(value: str) -> VolumeDetailsFileSystem:
    # A newer server may have more values.
    return cast(VolumeDetailsFileSystem, value)
