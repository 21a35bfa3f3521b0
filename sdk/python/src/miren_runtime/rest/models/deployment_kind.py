from typing import Literal, cast

DeploymentKind = Literal["config", "deploy", "promote", "restart", "rollback"]


def check_deployment_kind(value: str) -> DeploymentKind:
    # A newer server may have more values.
    return cast(DeploymentKind, value)
