from typing import Literal, cast

CreateKeyInputBodyRolesItem = Literal["admin", "agent", "deployer", "viewer"]


def check_create_key_input_body_roles_item(value: str) -> CreateKeyInputBodyRolesItem:
    # A newer server may have more values.
    return cast(CreateKeyInputBodyRolesItem, value)
