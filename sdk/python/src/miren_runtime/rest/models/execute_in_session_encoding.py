from typing import Literal, cast

ExecuteInSessionEncoding = Literal["base64", "text"]


def check_execute_in_session_encoding(value: str) -> ExecuteInSessionEncoding:
    # A newer server may have more values.
    return cast(ExecuteInSessionEncoding, value)
