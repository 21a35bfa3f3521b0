"""Contains all the data models used in inputs/outputs"""

from .addon import Addon
from .addon_backup import AddonBackup
from .addon_backup_state import AddonBackupState
from .addon_details import AddonDetails
from .addon_details_engine import AddonDetailsEngine
from .addon_details_state import AddonDetailsState
from .addon_engine import AddonEngine
from .addon_page import AddonPage
from .addon_state import AddonState
from .addon_use import AddonUse
from .app import App
from .app_detail import AppDetail
from .app_list import AppList
from .app_log_line import AppLogLine
from .app_log_line_stream import AppLogLineStream
from .app_logs import AppLogs
from .app_preview import AppPreview
from .app_preview_list import AppPreviewList
from .app_preview_source import AppPreviewSource
from .app_service import AppService
from .app_version import AppVersion
from .attach_addon_input_body import AttachAddonInputBody
from .audit_page import AuditPage
from .audit_record import AuditRecord
from .audit_record_detail import AuditRecordDetail
from .build_line import BuildLine
from .build_log import BuildLog
from .build_log_state import BuildLogState
from .clone_volume_input_body import CloneVolumeInputBody
from .command import Command
from .command_env import CommandEnv
from .command_list import CommandList
from .command_result import CommandResult
from .container import Container
from .container_labels import ContainerLabels
from .container_page import ContainerPage
from .container_purpose import ContainerPurpose
from .container_state import ContainerState
from .create_addon_backup_input_body import CreateAddonBackupInputBody
from .create_addon_input_body import CreateAddonInputBody
from .create_addon_input_body_engine import CreateAddonInputBodyEngine
from .create_key_input_body import CreateKeyInputBody
from .create_key_input_body_roles_item import CreateKeyInputBodyRolesItem
from .create_session import CreateSession
from .create_session_env import CreateSessionEnv
from .create_session_env_secret import CreateSessionEnvSecret
from .create_session_labels import CreateSessionLabels
from .create_session_mode import CreateSessionMode
from .create_session_network import CreateSessionNetwork
from .create_session_on_idle import CreateSessionOnIdle
from .create_snapshot_input_body import CreateSnapshotInputBody
from .create_snapshot_input_body_labels import CreateSnapshotInputBodyLabels
from .create_volume_input_body import CreateVolumeInputBody
from .create_volume_input_body_file_system import CreateVolumeInputBodyFileSystem
from .create_volume_snapshot_input_body import CreateVolumeSnapshotInputBody
from .create_webhook_input_body import CreateWebhookInputBody
from .deployment import Deployment
from .deployment_failure import DeploymentFailure
from .deployment_kind import DeploymentKind
from .deployment_list import DeploymentList
from .deployment_step import DeploymentStep
from .deployment_step_state import DeploymentStepState
from .egress import Egress
from .egress_log import EgressLog
from .egress_mode import EgressMode
from .egress_record import EgressRecord
from .end_event import EndEvent
from .entity_kind import EntityKind
from .entity_kind_scope import EntityKindScope
from .entity_page import EntityPage
from .entity_page_entities_item import EntityPageEntitiesItem
from .error_detail import ErrorDetail
from .event import Event
from .event_data import EventData
from .event_page import EventPage
from .execute import Execute
from .execute_env import ExecuteEnv
from .execute_in_session_encoding import ExecuteInSessionEncoding
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
from .fork import Fork
from .fork_env import ForkEnv
from .fork_labels import ForkLabels
from .fork_result import ForkResult
from .get_entity_response_200 import GetEntityResponse200
from .get_execution_result_encoding import GetExecutionResultEncoding
from .get_session_result_encoding import GetSessionResultEncoding
from .handler import Handler
from .handler_error import HandlerError
from .handler_result import HandlerResult
from .handler_result_outcome import HandlerResultOutcome
from .idle_input_body import IdleInputBody
from .idle_input_body_on_idle import IdleInputBodyOnIdle
from .input_file import InputFile
from .key import Key
from .key_detail import KeyDetail
from .key_limits import KeyLimits
from .key_page import KeyPage
from .key_use import KeyUse
from .kind_list import KindList
from .list_containers_purpose import ListContainersPurpose
from .list_containers_state import ListContainersState
from .list_executions_state import ListExecutionsState
from .list_sessions_state import ListSessionsState
from .log_line import LogLine
from .log_line_stream import LogLineStream
from .log_page import LogPage
from .metric_history import MetricHistory
from .metric_series import MetricSeries
from .metric_series_unit import MetricSeriesUnit
from .metrics import Metrics
from .mount_request import MountRequest
from .new_key import NewKey
from .new_template import NewTemplate
from .new_template_env import NewTemplateEnv
from .new_template_secrets import NewTemplateSecrets
from .new_webhook import NewWebhook
from .node import Node
from .node_list import NodeList
from .node_state import NodeState
from .node_summary import NodeSummary
from .note_event import NoteEvent
from .output_event import OutputEvent
from .output_event_stream import OutputEventStream
from .policy import Policy
from .policy_finding import PolicyFinding
from .policy_max_egress import PolicyMaxEgress
from .policy_report import PolicyReport
from .pool import Pool
from .pool_page import PoolPage
from .ports import Ports
from .problem import Problem
from .promote_preview_input_body import PromotePreviewInputBody
from .ready import Ready
from .replay_input_body import ReplayInputBody
from .resize_volume_input_body import ResizeVolumeInputBody
from .rollback_input_body import RollbackInputBody
from .running_command import RunningCommand
from .salvage_volume_input_body import SalvageVolumeInputBody
from .search_app_logs_level import SearchAppLogsLevel
from .session import Session
from .session_labels import SessionLabels
from .session_mode import SessionMode
from .session_on_idle import SessionOnIdle
from .session_page import SessionPage
from .session_state import SessionState
from .session_status import SessionStatus
from .set_pool_input_body import SetPoolInputBody
from .set_tag_input_body import SetTagInputBody
from .snapshot import Snapshot
from .snapshot_labels import SnapshotLabels
from .snapshot_page import SnapshotPage
from .snapshot_state import SnapshotState
from .stats import Stats
from .step import Step
from .step_kind import StepKind
from .stream_command_encoding import StreamCommandEncoding
from .stream_execution_encoding import StreamExecutionEncoding
from .submission import Submission
from .submission_env import SubmissionEnv
from .submission_env_secret import SubmissionEnvSecret
from .submission_labels import SubmissionLabels
from .template import Template
from .template_build import TemplateBuild
from .template_build_env import TemplateBuildEnv
from .template_build_secrets import TemplateBuildSecrets
from .template_details import TemplateDetails
from .template_details_tags import TemplateDetailsTags
from .template_list import TemplateList
from .template_tags import TemplateTags
from .template_version import TemplateVersion
from .template_version_state import TemplateVersionState
from .traffic_share import TrafficShare
from .update_webhook_input_body import UpdateWebhookInputBody
from .volume import Volume
from .volume_details import VolumeDetails
from .volume_details_file_system import VolumeDetailsFileSystem
from .volume_details_state import VolumeDetailsState
from .volume_file_system import VolumeFileSystem
from .volume_mount import VolumeMount
from .volume_page import VolumePage
from .volume_schedule import VolumeSchedule
from .volume_snapshot import VolumeSnapshot
from .volume_snapshot_list import VolumeSnapshotList
from .volume_snapshot_state import VolumeSnapshotState
from .volume_state import VolumeState
from .webhook import Webhook
from .webhook_delivery import WebhookDelivery
from .webhook_delivery_page import WebhookDeliveryPage
from .webhook_delivery_payload import WebhookDeliveryPayload
from .webhook_delivery_phase import WebhookDeliveryPhase
from .webhook_page import WebhookPage

__all__ = (
    "Addon",
    "AddonBackup",
    "AddonBackupState",
    "AddonDetails",
    "AddonDetailsEngine",
    "AddonDetailsState",
    "AddonEngine",
    "AddonPage",
    "AddonState",
    "AddonUse",
    "App",
    "AppDetail",
    "AppList",
    "AppLogLine",
    "AppLogLineStream",
    "AppLogs",
    "AppPreview",
    "AppPreviewList",
    "AppPreviewSource",
    "AppService",
    "AppVersion",
    "AttachAddonInputBody",
    "AuditPage",
    "AuditRecord",
    "AuditRecordDetail",
    "BuildLine",
    "BuildLog",
    "BuildLogState",
    "CloneVolumeInputBody",
    "Command",
    "CommandEnv",
    "CommandList",
    "CommandResult",
    "Container",
    "ContainerLabels",
    "ContainerPage",
    "ContainerPurpose",
    "ContainerState",
    "CreateAddonBackupInputBody",
    "CreateAddonInputBody",
    "CreateAddonInputBodyEngine",
    "CreateKeyInputBody",
    "CreateKeyInputBodyRolesItem",
    "CreateSession",
    "CreateSessionEnv",
    "CreateSessionEnvSecret",
    "CreateSessionLabels",
    "CreateSessionMode",
    "CreateSessionNetwork",
    "CreateSessionOnIdle",
    "CreateSnapshotInputBody",
    "CreateSnapshotInputBodyLabels",
    "CreateVolumeInputBody",
    "CreateVolumeInputBodyFileSystem",
    "CreateVolumeSnapshotInputBody",
    "CreateWebhookInputBody",
    "Deployment",
    "DeploymentFailure",
    "DeploymentKind",
    "DeploymentList",
    "DeploymentStep",
    "DeploymentStepState",
    "Egress",
    "EgressLog",
    "EgressMode",
    "EgressRecord",
    "EndEvent",
    "EntityKind",
    "EntityKindScope",
    "EntityPage",
    "EntityPageEntitiesItem",
    "ErrorDetail",
    "Event",
    "EventData",
    "EventPage",
    "Execute",
    "ExecuteEnv",
    "ExecuteInSessionEncoding",
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
    "Fork",
    "ForkEnv",
    "ForkLabels",
    "ForkResult",
    "GetEntityResponse200",
    "GetExecutionResultEncoding",
    "GetSessionResultEncoding",
    "Handler",
    "HandlerError",
    "HandlerResult",
    "HandlerResultOutcome",
    "IdleInputBody",
    "IdleInputBodyOnIdle",
    "InputFile",
    "Key",
    "KeyDetail",
    "KeyLimits",
    "KeyPage",
    "KeyUse",
    "KindList",
    "ListContainersPurpose",
    "ListContainersState",
    "ListExecutionsState",
    "ListSessionsState",
    "LogLine",
    "LogLineStream",
    "LogPage",
    "MetricHistory",
    "Metrics",
    "MetricSeries",
    "MetricSeriesUnit",
    "MountRequest",
    "NewKey",
    "NewTemplate",
    "NewTemplateEnv",
    "NewTemplateSecrets",
    "NewWebhook",
    "Node",
    "NodeList",
    "NodeState",
    "NodeSummary",
    "NoteEvent",
    "OutputEvent",
    "OutputEventStream",
    "Policy",
    "PolicyFinding",
    "PolicyMaxEgress",
    "PolicyReport",
    "Pool",
    "PoolPage",
    "Ports",
    "Problem",
    "PromotePreviewInputBody",
    "Ready",
    "ReplayInputBody",
    "ResizeVolumeInputBody",
    "RollbackInputBody",
    "RunningCommand",
    "SalvageVolumeInputBody",
    "SearchAppLogsLevel",
    "Session",
    "SessionLabels",
    "SessionMode",
    "SessionOnIdle",
    "SessionPage",
    "SessionState",
    "SessionStatus",
    "SetPoolInputBody",
    "SetTagInputBody",
    "Snapshot",
    "SnapshotLabels",
    "SnapshotPage",
    "SnapshotState",
    "Stats",
    "Step",
    "StepKind",
    "StreamCommandEncoding",
    "StreamExecutionEncoding",
    "Submission",
    "SubmissionEnv",
    "SubmissionEnvSecret",
    "SubmissionLabels",
    "Template",
    "TemplateBuild",
    "TemplateBuildEnv",
    "TemplateBuildSecrets",
    "TemplateDetails",
    "TemplateDetailsTags",
    "TemplateList",
    "TemplateTags",
    "TemplateVersion",
    "TemplateVersionState",
    "TrafficShare",
    "UpdateWebhookInputBody",
    "Volume",
    "VolumeDetails",
    "VolumeDetailsFileSystem",
    "VolumeDetailsState",
    "VolumeFileSystem",
    "VolumeMount",
    "VolumePage",
    "VolumeSchedule",
    "VolumeSnapshot",
    "VolumeSnapshotList",
    "VolumeSnapshotState",
    "VolumeState",
    "Webhook",
    "WebhookDelivery",
    "WebhookDeliveryPage",
    "WebhookDeliveryPayload",
    "WebhookDeliveryPhase",
    "WebhookPage",
)
