from typing import Literal, cast

HandlerResultOutcome = Literal["error", "success", "syntax", "timeout", "undefined"]


def check_handler_result_outcome(value: str) -> HandlerResultOutcome:
    # A newer server may have more values.
    return cast(HandlerResultOutcome, value)
