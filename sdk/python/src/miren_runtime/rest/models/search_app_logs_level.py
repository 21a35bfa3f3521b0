from typing import Literal, cast

SearchAppLogsLevel = Literal["debug", "error", "fatal", "info", "trace", "warn"]


def check_search_app_logs_level(value: str) -> SearchAppLogsLevel:
    # A newer server may have more values.
    return cast(SearchAppLogsLevel, value)
