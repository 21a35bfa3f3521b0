from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.create_session_mode import CreateSessionMode, check_create_session_mode
from ..models.create_session_network import (
    CreateSessionNetwork,
    check_create_session_network,
)
from ..models.create_session_on_idle import (
    CreateSessionOnIdle,
    check_create_session_on_idle,
)
from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.create_session_env import CreateSessionEnv
    from ..models.create_session_env_secret import CreateSessionEnvSecret
    from ..models.create_session_labels import CreateSessionLabels
    from ..models.egress import Egress
    from ..models.execute import Execute
    from ..models.mount_request import MountRequest


T = TypeVar("T", bound="CreateSession")


@_attrs_define
class CreateSession:
    agent: str | Unset = UNSET
    """ With template: names the agent, which gets the sandbox that it has. """
    cpu_millis: int | Unset = UNSET
    """ CPU, in thousandths. """
    disk_bytes: int | Unset = UNSET
    """ Bytes that it may write; persistent only. """
    egress: Egress | Unset = UNSET
    env: CreateSessionEnv | Unset = UNSET
    """ Environment variables. """
    env_secret: CreateSessionEnvSecret | Unset = UNSET
    """ Environment variables whose values are encrypted and never shown. """
    execute: Execute | Unset = UNSET
    idle_timeout_seconds: int | Unset = UNSET
    """ Time without use after which on_idle happens; persistent only. """
    image: str | Unset = UNSET
    """ Image; without template and image: debian. """
    labels: CreateSessionLabels | Unset = UNSET
    """ Labels. """
    memory_bytes: int | Unset = UNSET
    """ Memory. """
    mode: CreateSessionMode | Unset = "persistent"
    """ ephemeral needs execute. """
    name: str | Unset = UNSET
    """ Name, unique among the project's sandboxes; persistent only. """
    network: CreateSessionNetwork | Unset = UNSET
    """ Network; absent: bridge. """
    on_idle: CreateSessionOnIdle | Unset = UNSET
    """ What happens then; absent: stop. """
    template: str | Unset = UNSET
    """ Template: NAME, NAME:TAG or NAME:NUMBER; a warm sandbox serves if there is one. """
    ttl_seconds: int | Unset = UNSET
    """ It ends this long after its start; absent: never. Persistent only. """
    volumes: list[MountRequest] | Unset = UNSET
    """ Volumes to mount in it; persistent only. """

    def to_dict(self) -> dict[str, Any]:
        agent = self.agent

        cpu_millis = self.cpu_millis

        disk_bytes = self.disk_bytes

        egress: dict[str, Any] | Unset = UNSET
        if not isinstance(self.egress, Unset):
            egress = self.egress.to_dict()

        env: dict[str, Any] | Unset = UNSET
        if not isinstance(self.env, Unset):
            env = self.env.to_dict()

        env_secret: dict[str, Any] | Unset = UNSET
        if not isinstance(self.env_secret, Unset):
            env_secret = self.env_secret.to_dict()

        execute: dict[str, Any] | Unset = UNSET
        if not isinstance(self.execute, Unset):
            execute = self.execute.to_dict()

        idle_timeout_seconds = self.idle_timeout_seconds

        image = self.image

        labels: dict[str, Any] | Unset = UNSET
        if not isinstance(self.labels, Unset):
            labels = self.labels.to_dict()

        memory_bytes = self.memory_bytes

        mode: str | Unset = UNSET
        if not isinstance(self.mode, Unset):
            mode = self.mode

        name = self.name

        network: str | Unset = UNSET
        if not isinstance(self.network, Unset):
            network = self.network

        on_idle: str | Unset = UNSET
        if not isinstance(self.on_idle, Unset):
            on_idle = self.on_idle

        template = self.template

        ttl_seconds = self.ttl_seconds

        volumes: list[dict[str, Any]] | Unset = UNSET
        if not isinstance(self.volumes, Unset):
            volumes = []
            for volumes_item_data in self.volumes:
                volumes_item = volumes_item_data.to_dict()
                volumes.append(volumes_item)

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if agent is not UNSET:
            field_dict["agent"] = agent
        if cpu_millis is not UNSET:
            field_dict["cpu_millis"] = cpu_millis
        if disk_bytes is not UNSET:
            field_dict["disk_bytes"] = disk_bytes
        if egress is not UNSET:
            field_dict["egress"] = egress
        if env is not UNSET:
            field_dict["env"] = env
        if env_secret is not UNSET:
            field_dict["env_secret"] = env_secret
        if execute is not UNSET:
            field_dict["execute"] = execute
        if idle_timeout_seconds is not UNSET:
            field_dict["idle_timeout_seconds"] = idle_timeout_seconds
        if image is not UNSET:
            field_dict["image"] = image
        if labels is not UNSET:
            field_dict["labels"] = labels
        if memory_bytes is not UNSET:
            field_dict["memory_bytes"] = memory_bytes
        if mode is not UNSET:
            field_dict["mode"] = mode
        if name is not UNSET:
            field_dict["name"] = name
        if network is not UNSET:
            field_dict["network"] = network
        if on_idle is not UNSET:
            field_dict["on_idle"] = on_idle
        if template is not UNSET:
            field_dict["template"] = template
        if ttl_seconds is not UNSET:
            field_dict["ttl_seconds"] = ttl_seconds
        if volumes is not UNSET:
            field_dict["volumes"] = volumes

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.create_session_env import CreateSessionEnv  # noqa: PLC0415
        from ..models.create_session_env_secret import CreateSessionEnvSecret  # noqa: PLC0415
        from ..models.create_session_labels import CreateSessionLabels  # noqa: PLC0415
        from ..models.egress import Egress  # noqa: PLC0415
        from ..models.execute import Execute  # noqa: PLC0415
        from ..models.mount_request import MountRequest  # noqa: PLC0415

        d = dict(src_dict)
        agent = d.pop("agent", UNSET)

        cpu_millis = d.pop("cpu_millis", UNSET)

        disk_bytes = d.pop("disk_bytes", UNSET)

        _egress = d.pop("egress", UNSET)
        egress: Egress | Unset
        if isinstance(_egress, Unset):
            egress = UNSET
        else:
            egress = Egress.from_dict(_egress)

        _env = d.pop("env", UNSET)
        env: CreateSessionEnv | Unset
        if isinstance(_env, Unset):
            env = UNSET
        else:
            env = CreateSessionEnv.from_dict(_env)

        _env_secret = d.pop("env_secret", UNSET)
        env_secret: CreateSessionEnvSecret | Unset
        if isinstance(_env_secret, Unset):
            env_secret = UNSET
        else:
            env_secret = CreateSessionEnvSecret.from_dict(_env_secret)

        _execute = d.pop("execute", UNSET)
        execute: Execute | Unset
        if isinstance(_execute, Unset):
            execute = UNSET
        else:
            execute = Execute.from_dict(_execute)

        idle_timeout_seconds = d.pop("idle_timeout_seconds", UNSET)

        image = d.pop("image", UNSET)

        _labels = d.pop("labels", UNSET)
        labels: CreateSessionLabels | Unset
        if isinstance(_labels, Unset):
            labels = UNSET
        else:
            labels = CreateSessionLabels.from_dict(_labels)

        memory_bytes = d.pop("memory_bytes", UNSET)

        _mode = d.pop("mode", UNSET)
        mode: CreateSessionMode | Unset
        if isinstance(_mode, Unset):
            mode = UNSET
        else:
            mode = check_create_session_mode(_mode)

        name = d.pop("name", UNSET)

        _network = d.pop("network", UNSET)
        network: CreateSessionNetwork | Unset
        if isinstance(_network, Unset):
            network = UNSET
        else:
            network = check_create_session_network(_network)

        _on_idle = d.pop("on_idle", UNSET)
        on_idle: CreateSessionOnIdle | Unset
        if isinstance(_on_idle, Unset):
            on_idle = UNSET
        else:
            on_idle = check_create_session_on_idle(_on_idle)

        template = d.pop("template", UNSET)

        ttl_seconds = d.pop("ttl_seconds", UNSET)

        _volumes = d.pop("volumes", UNSET)
        volumes: list[MountRequest] | Unset = UNSET
        if _volumes is not UNSET:
            volumes = []
            for volumes_item_data in _volumes:
                volumes_item = MountRequest.from_dict(volumes_item_data)

                volumes.append(volumes_item)

        create_session = cls(
            agent=agent,
            cpu_millis=cpu_millis,
            disk_bytes=disk_bytes,
            egress=egress,
            env=env,
            env_secret=env_secret,
            execute=execute,
            idle_timeout_seconds=idle_timeout_seconds,
            image=image,
            labels=labels,
            memory_bytes=memory_bytes,
            mode=mode,
            name=name,
            network=network,
            on_idle=on_idle,
            template=template,
            ttl_seconds=ttl_seconds,
            volumes=volumes,
        )

        return create_session
