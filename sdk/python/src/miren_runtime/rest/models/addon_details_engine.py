from typing import Literal, cast

AddonDetailsEngine = Literal["mysql", "postgres", "s3", "valkey"]


def check_addon_details_engine(value: str) -> AddonDetailsEngine:
    # A newer server may have more values.
    return cast(AddonDetailsEngine, value)
