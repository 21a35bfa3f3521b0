from typing import Literal, cast

GetExecutionResultEncoding = Literal["base64", "text"]


def check_get_execution_result_encoding(value: str) -> GetExecutionResultEncoding:
    # A newer server may have more values.
    return cast(GetExecutionResultEncoding, value)
