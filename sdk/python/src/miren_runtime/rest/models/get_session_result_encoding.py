from typing import Literal, cast

GetSessionResultEncoding = Literal["base64", "text"]


def check_get_session_result_encoding(value: str) -> GetSessionResultEncoding:
    # A newer server may have more values.
    return cast(GetSessionResultEncoding, value)
