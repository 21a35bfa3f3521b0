from typing import Literal, cast

LogLineStream = Literal["stderr", "stdout"]


def check_log_line_stream(value: str) -> LogLineStream:
    # A newer server may have more values.
    return cast(LogLineStream, value)
