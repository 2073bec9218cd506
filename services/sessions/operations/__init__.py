"""Steps that the rpcs, the claims and the sweep share.

`Operations` (core.py) is what they get; `writer.py` is the only way into a log,
`committer.py` the shared commits, `waiting_room.py` the runners that wait here.
"""

from services.sessions.operations.core import Operations, Unit

__all__ = ["Operations", "Unit"]
