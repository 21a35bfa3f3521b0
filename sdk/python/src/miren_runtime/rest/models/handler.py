from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="Handler")


@_attrs_define
class Handler:
    code: str
    """ Content of the file. """
    file: str
    """ Name of its file: .py, .js, .mjs, .cjs or .go. """
    context: Any | Unset = UNSET
    """ An object whose fields replace those of the context. """
    event: Any | Unset = UNSET
    """ Event; absent: {}. """
    function: str | Unset = UNSET
    """ Name of the function; absent: the language's usual ones. """
    layers: list[str] | Unset = UNSET
    """ Directories of layers, below the working directory. """

    def to_dict(self) -> dict[str, Any]:
        code = self.code

        file = self.file

        context = self.context

        event = self.event

        function = self.function

        layers: list[str] | Unset = UNSET
        if not isinstance(self.layers, Unset):
            layers = self.layers

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "code": code,
                "file": file,
            }
        )
        if context is not UNSET:
            field_dict["context"] = context
        if event is not UNSET:
            field_dict["event"] = event
        if function is not UNSET:
            field_dict["function"] = function
        if layers is not UNSET:
            field_dict["layers"] = layers

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        code = d.pop("code")

        file = d.pop("file")

        context = d.pop("context", UNSET)

        event = d.pop("event", UNSET)

        function = d.pop("function", UNSET)

        layers = cast(list[str], d.pop("layers", UNSET))

        handler = cls(
            code=code,
            file=file,
            context=context,
            event=event,
            function=function,
            layers=layers,
        )

        return handler
