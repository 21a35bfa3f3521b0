from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..models.execution_result_encoding import (
    ExecutionResultEncoding,
    check_execution_result_encoding,
)
from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.execution import Execution
    from ..models.handler_result import HandlerResult


T = TypeVar("T", bound="ExecutionResult")


@_attrs_define
class ExecutionResult:
    encoding: ExecutionResultEncoding
    """ Of stdout, stderr and result. """
    execution: Execution
    stderr: str
    """ Error output, its first MiB. """
    stdout: str
    """ Standard output, its first MiB. """
    handler: HandlerResult | Unset = UNSET
    result: str | Unset = UNSET
    """ What the program wrote to the file that EXECUTION_RESULT names. """
    result_truncated: bool | Unset = UNSET
    """ There was more than a MiB of the result. """
    stderr_truncated: bool | Unset = UNSET
    """ There was more error output. """
    stdout_truncated: bool | Unset = UNSET
    """ There was more standard output. """

    def to_dict(self) -> dict[str, Any]:
        encoding: str = self.encoding

        execution = self.execution.to_dict()

        stderr = self.stderr

        stdout = self.stdout

        handler: dict[str, Any] | Unset = UNSET
        if not isinstance(self.handler, Unset):
            handler = self.handler.to_dict()

        result = self.result

        result_truncated = self.result_truncated

        stderr_truncated = self.stderr_truncated

        stdout_truncated = self.stdout_truncated

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "encoding": encoding,
                "execution": execution,
                "stderr": stderr,
                "stdout": stdout,
            }
        )
        if handler is not UNSET:
            field_dict["handler"] = handler
        if result is not UNSET:
            field_dict["result"] = result
        if result_truncated is not UNSET:
            field_dict["result_truncated"] = result_truncated
        if stderr_truncated is not UNSET:
            field_dict["stderr_truncated"] = stderr_truncated
        if stdout_truncated is not UNSET:
            field_dict["stdout_truncated"] = stdout_truncated

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.execution import Execution  # noqa: PLC0415
        from ..models.handler_result import HandlerResult  # noqa: PLC0415

        d = dict(src_dict)
        encoding = check_execution_result_encoding(d.pop("encoding"))

        execution = Execution.from_dict(d.pop("execution"))

        stderr = d.pop("stderr")

        stdout = d.pop("stdout")

        _handler = d.pop("handler", UNSET)
        handler: HandlerResult | Unset
        if isinstance(_handler, Unset):
            handler = UNSET
        else:
            handler = HandlerResult.from_dict(_handler)

        result = d.pop("result", UNSET)

        result_truncated = d.pop("result_truncated", UNSET)

        stderr_truncated = d.pop("stderr_truncated", UNSET)

        stdout_truncated = d.pop("stdout_truncated", UNSET)

        execution_result = cls(
            encoding=encoding,
            execution=execution,
            stderr=stderr,
            stdout=stdout,
            handler=handler,
            result=result,
            result_truncated=result_truncated,
            stderr_truncated=stderr_truncated,
            stdout_truncated=stdout_truncated,
        )

        return execution_result
