from typing import Literal, cast

ListContainersPurpose = Literal["app", "execution", "pool", "session"]


def check_list_containers_purpose(value: str) -> ListContainersPurpose:
    # A newer server may have more values.
    return cast(ListContainersPurpose, value)
