from typing import Literal, cast

AddonEngine = Literal["mysql", "postgres", "s3", "valkey"]


def check_addon_engine(value: str) -> AddonEngine:
    # A newer server may have more values.
    return cast(AddonEngine, value)
