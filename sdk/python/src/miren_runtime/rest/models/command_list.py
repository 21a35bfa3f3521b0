from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.running_command import RunningCommand


T = TypeVar("T", bound="CommandList")


@_attrs_define
class CommandList:
    commands: list[RunningCommand]
    """ Those that run, and those in the background that ended within the last hour, the latest first, at most 128.
    """

    def to_dict(self) -> dict[str, Any]:
        commands = []
        for commands_item_data in self.commands:
            commands_item = commands_item_data.to_dict()
            commands.append(commands_item)

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "commands": commands,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.running_command import RunningCommand  # noqa: PLC0415

        d = dict(src_dict)
        commands = []
        _commands = d.pop("commands")
        for commands_item_data in _commands:
            commands_item = RunningCommand.from_dict(commands_item_data)

            commands.append(commands_item)

        command_list = cls(
            commands=commands,
        )

        return command_list
