from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.deployment_kind import DeploymentKind, check_deployment_kind
from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.deployment_failure import DeploymentFailure
    from ..models.deployment_step import DeploymentStep


T = TypeVar("T", bound="Deployment")


@_attrs_define
class Deployment:
    app: str
    """ Name of the app. """
    created_at: datetime.datetime
    """ Time at which it was accepted. """
    id: str
    """ Id. """
    kind: DeploymentKind
    """ Kind. """
    phase: str
    """ Phase; succeeded, failed and canceled are final. """
    steps: list[DeploymentStep]
    """ Its steps, in order. """
    branch: str | Unset = UNSET
    """ Branch of the source. """
    commit: str | Unset = UNSET
    """ Commit of the source. """
    ended_at: datetime.datetime | Unset = UNSET
    """ Time of its end; absent: it is under way. """
    failure: DeploymentFailure | Unset = UNSET
    message: str | Unset = UNSET
    """ Reason that the user gave. """
    preview: str | Unset = UNSET
    """ Name of the preview that it makes or replaces; absent: it changes what the app's hosts get. """
    requested_by: str | Unset = UNSET
    """ Who asked for it. """
    url: str | Unset = UNSET
    """ URL of the app, or of the preview. """
    version: int | Unset = UNSET
    """ Number of the version that it rolls out; absent: there is none yet. """

    def to_dict(self) -> dict[str, Any]:
        app = self.app

        created_at = self.created_at.isoformat()

        id = self.id

        kind: str = self.kind

        phase = self.phase

        steps = []
        for steps_item_data in self.steps:
            steps_item = steps_item_data.to_dict()
            steps.append(steps_item)

        branch = self.branch

        commit = self.commit

        ended_at: str | Unset = UNSET
        if not isinstance(self.ended_at, Unset):
            ended_at = self.ended_at.isoformat()

        failure: dict[str, Any] | Unset = UNSET
        if not isinstance(self.failure, Unset):
            failure = self.failure.to_dict()

        message = self.message

        preview = self.preview

        requested_by = self.requested_by

        url = self.url

        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "app": app,
                "created_at": created_at,
                "id": id,
                "kind": kind,
                "phase": phase,
                "steps": steps,
            }
        )
        if branch is not UNSET:
            field_dict["branch"] = branch
        if commit is not UNSET:
            field_dict["commit"] = commit
        if ended_at is not UNSET:
            field_dict["ended_at"] = ended_at
        if failure is not UNSET:
            field_dict["failure"] = failure
        if message is not UNSET:
            field_dict["message"] = message
        if preview is not UNSET:
            field_dict["preview"] = preview
        if requested_by is not UNSET:
            field_dict["requested_by"] = requested_by
        if url is not UNSET:
            field_dict["url"] = url
        if version is not UNSET:
            field_dict["version"] = version

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.deployment_failure import DeploymentFailure  # noqa: PLC0415
        from ..models.deployment_step import DeploymentStep  # noqa: PLC0415

        d = dict(src_dict)
        app = d.pop("app")

        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        id = d.pop("id")

        kind = check_deployment_kind(d.pop("kind"))

        phase = d.pop("phase")

        steps = []
        _steps = d.pop("steps")
        for steps_item_data in _steps:
            steps_item = DeploymentStep.from_dict(steps_item_data)

            steps.append(steps_item)

        branch = d.pop("branch", UNSET)

        commit = d.pop("commit", UNSET)

        _ended_at = d.pop("ended_at", UNSET)
        ended_at: datetime.datetime | Unset
        if isinstance(_ended_at, Unset):
            ended_at = UNSET
        else:
            ended_at = datetime.datetime.fromisoformat(_ended_at)

        _failure = d.pop("failure", UNSET)
        failure: DeploymentFailure | Unset
        if isinstance(_failure, Unset):
            failure = UNSET
        else:
            failure = DeploymentFailure.from_dict(_failure)

        message = d.pop("message", UNSET)

        preview = d.pop("preview", UNSET)

        requested_by = d.pop("requested_by", UNSET)

        url = d.pop("url", UNSET)

        version = d.pop("version", UNSET)

        deployment = cls(
            app=app,
            created_at=created_at,
            id=id,
            kind=kind,
            phase=phase,
            steps=steps,
            branch=branch,
            commit=commit,
            ended_at=ended_at,
            failure=failure,
            message=message,
            preview=preview,
            requested_by=requested_by,
            url=url,
            version=version,
        )

        return deployment
