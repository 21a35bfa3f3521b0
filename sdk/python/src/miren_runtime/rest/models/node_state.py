from typing import Literal, cast

NodeState = Literal["down", "ready", "unknown"]


def check_node_state(value: str) -> NodeState:
    # A newer server may have more values.
    return cast(NodeState, value)
