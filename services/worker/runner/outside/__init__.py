"""Tools of self-hosted environments: each is one or more items of work that a worker of the operator does.

The runner keeps no folder and no shell for such a session. What a tool needs of the machine goes through the queue as
`exec`, `read`, `write` or `list`, and what comes back is judged, shaped and limited by the same code as everywhere.
"""

from services.worker.runner.outside.items import WorkQueue, item_id
from services.worker.runner.outside.sandbox import PROVIDER, OutsideSandbox, OutsideWork, is_self_hosted

__all__ = ["PROVIDER", "OutsideSandbox", "OutsideWork", "WorkQueue", "is_self_hosted", "item_id"]
