from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.metric_series import MetricSeries


T = TypeVar("T", bound="MetricHistory")


@_attrs_define
class MetricHistory:
    from_: datetime.datetime
    """ Time of the first values. """
    series: list[MetricSeries]
    """ Metrics that have a value. """
    step_seconds: float
    """ Seconds between two values. """

    def to_dict(self) -> dict[str, Any]:
        from_ = self.from_.isoformat()

        series = []
        for series_item_data in self.series:
            series_item = series_item_data.to_dict()
            series.append(series_item)

        step_seconds = self.step_seconds

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "from": from_,
                "series": series,
                "step_seconds": step_seconds,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.metric_series import MetricSeries  # noqa: PLC0415

        d = dict(src_dict)
        from_ = datetime.datetime.fromisoformat(d.pop("from"))

        series = []
        _series = d.pop("series")
        for series_item_data in _series:
            series_item = MetricSeries.from_dict(series_item_data)

            series.append(series_item)

        step_seconds = d.pop("step_seconds")

        metric_history = cls(
            from_=from_,
            series=series,
            step_seconds=step_seconds,
        )

        return metric_history
