from typing import Literal, cast

CreateAddonInputBodyEngine = Literal["mysql", "postgres", "s3", "valkey"]


def check_create_addon_input_body_engine(value: str) -> CreateAddonInputBodyEngine:
    # A newer server may have more values.
    return cast(CreateAddonInputBodyEngine, value)
