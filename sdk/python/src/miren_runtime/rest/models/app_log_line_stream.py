from typing import Literal, cast

AppLogLineStream = Literal["stderr", "stdout"]


def check_app_log_line_stream(value: str) -> AppLogLineStream:
    # A newer server may have more values.
    return cast(AppLogLineStream, value)
