"""Where a session's tools run: isolation, limits, network policy, warm shells.

`SandboxManager` is what the runner uses; `SandboxProvider` is what a further
kind of sandbox implements. Nothing here is durable but the sessions' folders.
"""

from services.worker.sandbox.limits import SandboxLimits
from services.worker.sandbox.manager import SandboxManager, SessionSandbox
from services.worker.sandbox.provider import (
    Sandbox,
    SandboxDescription,
    SandboxProvider,
    SandboxProviderNotRegistered,
)

__all__ = [
    "Sandbox",
    "SandboxDescription",
    "SandboxLimits",
    "SandboxManager",
    "SandboxProvider",
    "SandboxProviderNotRegistered",
    "SessionSandbox",
]
