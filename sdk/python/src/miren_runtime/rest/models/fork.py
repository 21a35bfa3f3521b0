from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.fork_env import ForkEnv
    from ..models.fork_labels import ForkLabels


T = TypeVar("T", bound="Fork")


@_attrs_define
class Fork:
    count: int | Unset = 1
    """ Number of sessions. """
    env: ForkEnv | Unset = UNSET
    """ Environment variables of processes that are started from then on. """
    labels: ForkLabels | Unset = UNSET
    """ Labels of the sessions. """
    ttl_seconds: int | Unset = UNSET
    """ Each ends this long after its start; absent: never. """

    def to_dict(self) -> dict[str, Any]:
        count = self.count

        env: dict[str, Any] | Unset = UNSET
        if not isinstance(self.env, Unset):
            env = self.env.to_dict()

        labels: dict[str, Any] | Unset = UNSET
        if not isinstance(self.labels, Unset):
            labels = self.labels.to_dict()

        ttl_seconds = self.ttl_seconds

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if count is not UNSET:
            field_dict["count"] = count
        if env is not UNSET:
            field_dict["env"] = env
        if labels is not UNSET:
            field_dict["labels"] = labels
        if ttl_seconds is not UNSET:
            field_dict["ttl_seconds"] = ttl_seconds

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.fork_env import ForkEnv  # noqa: PLC0415
        from ..models.fork_labels import ForkLabels  # noqa: PLC0415

        d = dict(src_dict)
        count = d.pop("count", UNSET)

        _env = d.pop("env", UNSET)
        env: ForkEnv | Unset
        if isinstance(_env, Unset):
            env = UNSET
        else:
            env = ForkEnv.from_dict(_env)

        _labels = d.pop("labels", UNSET)
        labels: ForkLabels | Unset
        if isinstance(_labels, Unset):
            labels = UNSET
        else:
            labels = ForkLabels.from_dict(_labels)

        ttl_seconds = d.pop("ttl_seconds", UNSET)

        fork = cls(
            count=count,
            env=env,
            labels=labels,
            ttl_seconds=ttl_seconds,
        )

        return fork
