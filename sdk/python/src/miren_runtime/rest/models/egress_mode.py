from typing import Literal, cast

EgressMode = Literal["all", "list", "none"]


def check_egress_mode(value: str) -> EgressMode:
    # A newer server may have more values.
    return cast(EgressMode, value)
