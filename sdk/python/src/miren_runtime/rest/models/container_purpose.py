from typing import Literal, cast

ContainerPurpose = Literal["app", "execution", "pool", "session"]


def check_container_purpose(value: str) -> ContainerPurpose:
    # A newer server may have more values.
    return cast(ContainerPurpose, value)
