from typing import Literal, cast

MetricSeriesUnit = Literal["bytes", "bytes/s", "cores", "count", "requests/s", "seconds"]


def check_metric_series_unit(value: str) -> MetricSeriesUnit:
    # A newer server may have more values.
    return cast(MetricSeriesUnit, value)
