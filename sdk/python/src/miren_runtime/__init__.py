"""Client of Miren Runtime: sandboxes for agents and untrusted code.

``Client`` blocks, ``AsyncClient`` has the same methods for asyncio and Trio. ``rest`` is generated from the server's
OpenAPI document and has every operation; ``Client.rest`` is what its functions take as ``client``.
"""

from ._async.client import AsyncClient
from ._async.sandbox import AsyncFiles, AsyncSandbox
from ._sync.client import Client
from ._sync.sandbox import Files, Sandbox
from ._version import __version__
from .errors import (
    AlreadyExists,
    Conflict,
    ConnectionFailed,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    MirenError,
    NotFound,
    PermissionDenied,
    ProblemError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from .events import Event

__all__ = [
    "AlreadyExists",
    "AsyncClient",
    "AsyncFiles",
    "AsyncSandbox",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Event",
    "FailedPrecondition",
    "Files",
    "Internal",
    "InvalidArgument",
    "MirenError",
    "NotFound",
    "PermissionDenied",
    "ProblemError",
    "ResourceExhausted",
    "Sandbox",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "__version__",
]
