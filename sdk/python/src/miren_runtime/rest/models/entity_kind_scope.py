from typing import Literal, cast

EntityKindScope = Literal["cluster", "project"]


def check_entity_kind_scope(value: str) -> EntityKindScope:
    # A newer server may have more values.
    return cast(EntityKindScope, value)
