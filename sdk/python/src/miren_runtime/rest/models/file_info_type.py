from typing import Literal, cast

FileInfoType = Literal["directory", "file", "other", "symlink"]


def check_file_info_type(value: str) -> FileInfoType:
    # A newer server may have more values.
    return cast(FileInfoType, value)
