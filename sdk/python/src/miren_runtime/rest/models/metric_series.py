from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..models.metric_series_unit import MetricSeriesUnit, check_metric_series_unit
from ..types import UNSET, Unset

T = TypeVar("T", bound="MetricSeries")


@_attrs_define
class MetricSeries:
    metric: str
    """ What it is: cpu, memory, processes, network_in, network_out, sandboxes, requests, latency, in_flight,
    disk_used. """
    unit: MetricSeriesUnit
    """ Unit of the values. """
    values: list[float | None]
    """ A value for each time; null: there is none. """
    label: str | Unset = UNSET
    """ Of requests the class of their status (2xx; gone: the client left), of latency the quantile (p50, p95, p99).
    """
    service: str | Unset = UNSET
    """ Service of the app. """

    def to_dict(self) -> dict[str, Any]:
        metric = self.metric

        unit: str = self.unit

        values = []
        for values_item_data in self.values:
            values_item: float | None
            values_item = values_item_data
            values.append(values_item)

        label = self.label

        service = self.service

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "metric": metric,
                "unit": unit,
                "values": values,
            }
        )
        if label is not UNSET:
            field_dict["label"] = label
        if service is not UNSET:
            field_dict["service"] = service

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        metric = d.pop("metric")

        unit = check_metric_series_unit(d.pop("unit"))

        values = []
        _values = d.pop("values")
        for values_item_data in _values:

            def _parse_values_item(data: object) -> float | None:
                if data is None:
                    return data
                return cast(float | None, data)

            values_item = _parse_values_item(values_item_data)

            values.append(values_item)

        label = d.pop("label", UNSET)

        service = d.pop("service", UNSET)

        metric_series = cls(
            metric=metric,
            unit=unit,
            values=values,
            label=label,
            service=service,
        )

        return metric_series
