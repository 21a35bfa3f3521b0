from typing import Literal, cast

OutputEventStream = Literal["stderr", "stdout"]


def check_output_event_stream(value: str) -> OutputEventStream:
    # A newer server may have more values.
    return cast(OutputEventStream, value)
