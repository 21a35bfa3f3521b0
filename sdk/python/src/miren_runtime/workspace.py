"""Client of the workspace API, ``/workspace/se``: sessions whose ids are the caller's. The guide is docs/workspace.md.

``Workspace`` blocks and takes a ``Client``; ``AsyncWorkspace`` has the same methods and takes an ``AsyncClient``.
"""

from ._async.workspace import AsyncWorkspace
from ._sync.workspace import Workspace
from ._workspace import Metrics, Result, UploadedFile, WorkspaceSession

__all__ = ["AsyncWorkspace", "Metrics", "Result", "UploadedFile", "Workspace", "WorkspaceSession"]
