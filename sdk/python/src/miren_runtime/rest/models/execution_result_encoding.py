from typing import Literal, cast

ExecutionResultEncoding = Literal["base64", "text"]


def check_execution_result_encoding(value: str) -> ExecutionResultEncoding:
    # A newer server may have more values.
    return cast(ExecutionResultEncoding, value)
