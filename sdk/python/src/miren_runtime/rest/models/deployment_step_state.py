from typing import Literal, cast

DeploymentStepState = Literal["done", "failed", "pending", "running", "skipped"]


def check_deployment_step_state(value: str) -> DeploymentStepState:
    # A newer server may have more values.
    return cast(DeploymentStepState, value)
