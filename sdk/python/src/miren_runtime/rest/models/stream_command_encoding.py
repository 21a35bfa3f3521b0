from typing import Literal, cast

StreamCommandEncoding = Literal["base64", "text"]


def check_stream_command_encoding(value: str) -> StreamCommandEncoding:
    # A newer server may have more values.
    return cast(StreamCommandEncoding, value)
