"""What a session works with in its sandbox: files, repositories, memory, skills, outputs.

A `Mount` knows one kind of it. `loop/workspace.py` runs the mounts of one turn: it prepares the session's folder before
the first model request or tool, tells mounts what tools did, and lets them finish before the turn's end is committed.
"""

from services.worker.runner.workspace.attachments import Attachment, attachments_of
from services.worker.runner.workspace.ground import Ground
from services.worker.runner.workspace.mount import Mount, MountFailed, ToolRun

__all__ = ["Attachment", "Ground", "Mount", "MountFailed", "ToolRun", "attachments_of"]
