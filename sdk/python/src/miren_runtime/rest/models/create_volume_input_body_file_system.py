from typing import Literal, cast

CreateVolumeInputBodyFileSystem = Literal["ext4", "xfs"]


def check_create_volume_input_body_file_system(value: str) -> CreateVolumeInputBodyFileSystem:
    # A newer server may have more values.
    return cast(CreateVolumeInputBodyFileSystem, value)
