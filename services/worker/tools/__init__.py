"""The built-in tools: bash, read, write, edit, glob, grep.

Written once, for the runner's sandboxes and for the fleet program on an
operator's machine: so nothing here imports more than the standard library and
RE2 (and works without that), and nothing here knows how a session is isolated.
A caller gives a folder, a way to start a shell, and a place for spill files.
"""

from services.worker.tools.files import FileView, VisibleRoot
from services.worker.tools.outcome import ToolFailed, ToolInputInvalid, ToolOutcome
from services.worker.tools.overflow import limit_text, spill_opener
from services.worker.tools.shell import PersistentShell, ShellProcess, ShellUnavailable
from services.worker.tools.spec import ToolSpec
from services.worker.tools.toolbox import TOOL_SPECS, Toolbox, validate_input

__all__ = [
    "TOOL_SPECS",
    "FileView",
    "PersistentShell",
    "ShellProcess",
    "ShellUnavailable",
    "ToolFailed",
    "ToolInputInvalid",
    "ToolOutcome",
    "ToolSpec",
    "Toolbox",
    "VisibleRoot",
    "limit_text",
    "spill_opener",
    "validate_input",
]
