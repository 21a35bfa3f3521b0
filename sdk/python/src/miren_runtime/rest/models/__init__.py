"""Contains all the data models used in inputs/outputs"""

from .command import Command
from .command_env import CommandEnv
from .command_result import CommandResult
from .create_session import CreateSession
from .create_session_env import CreateSessionEnv
from .create_session_env_secret import CreateSessionEnvSecret
from .create_session_labels import CreateSessionLabels
from .create_session_mode import CreateSessionMode
from .create_session_network import CreateSessionNetwork
from .create_session_on_idle import CreateSessionOnIdle
from .egress import Egress
from .egress_mode import EgressMode
from .error_detail import ErrorDetail
from .execute import Execute
from .execute_env import ExecuteEnv
from .execution import Execution
from .execution_labels import ExecutionLabels
from .execution_outcome import ExecutionOutcome
from .execution_page import ExecutionPage
from .execution_result import ExecutionResult
from .execution_result_encoding import ExecutionResultEncoding
from .execution_state import ExecutionState
from .extend_input_body import ExtendInputBody
from .file_info import FileInfo
from .file_info_type import FileInfoType
from .file_page import FilePage
from .get_execution_result_encoding import GetExecutionResultEncoding
from .get_session_result_encoding import GetSessionResultEncoding
from .input_file import InputFile
from .list_executions_state import ListExecutionsState
from .list_sessions_state import ListSessionsState
from .metrics import Metrics
from .problem import Problem
from .session import Session
from .session_labels import SessionLabels
from .session_mode import SessionMode
from .session_page import SessionPage
from .session_state import SessionState
from .session_status import SessionStatus
from .submission import Submission
from .submission_env import SubmissionEnv
from .submission_env_secret import SubmissionEnvSecret
from .submission_labels import SubmissionLabels
from .template import Template
from .template_list import TemplateList
from .template_tags import TemplateTags

__all__ = (
    "Command",
    "CommandEnv",
    "CommandResult",
    "CreateSession",
    "CreateSessionEnv",
    "CreateSessionEnvSecret",
    "CreateSessionLabels",
    "CreateSessionMode",
    "CreateSessionNetwork",
    "CreateSessionOnIdle",
    "Egress",
    "EgressMode",
    "ErrorDetail",
    "Execute",
    "ExecuteEnv",
    "Execution",
    "ExecutionLabels",
    "ExecutionOutcome",
    "ExecutionPage",
    "ExecutionResult",
    "ExecutionResultEncoding",
    "ExecutionState",
    "ExtendInputBody",
    "FileInfo",
    "FileInfoType",
    "FilePage",
    "GetExecutionResultEncoding",
    "GetSessionResultEncoding",
    "InputFile",
    "ListExecutionsState",
    "ListSessionsState",
    "Metrics",
    "Problem",
    "Session",
    "SessionLabels",
    "SessionMode",
    "SessionPage",
    "SessionState",
    "SessionStatus",
    "Submission",
    "SubmissionEnv",
    "SubmissionEnvSecret",
    "SubmissionLabels",
    "Template",
    "TemplateList",
    "TemplateTags",
)
