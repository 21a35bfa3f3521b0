from typing import Literal, cast

StreamExecutionEncoding = Literal["base64", "text"]


def check_stream_execution_encoding(value: str) -> StreamExecutionEncoding:
    # A newer server may have more values.
    return cast(StreamExecutionEncoding, value)
