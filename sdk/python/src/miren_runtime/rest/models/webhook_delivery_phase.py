from typing import Literal, cast

WebhookDeliveryPhase = Literal["dead", "delivered", "pending"]


def check_webhook_delivery_phase(value: str) -> WebhookDeliveryPhase:
    # A newer server may have more values.
    return cast(WebhookDeliveryPhase, value)
