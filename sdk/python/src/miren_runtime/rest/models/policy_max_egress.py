from typing import Literal, cast

PolicyMaxEgress = Literal["all", "listed", "none"]


def check_policy_max_egress(value: str) -> PolicyMaxEgress:
    # A newer server may have more values.
    return cast(PolicyMaxEgress, value)
