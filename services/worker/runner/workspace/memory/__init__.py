"""Memory stores as folders of a sandbox.

A store's folder is an ordinary one, so every tool and the shell work on it. Beside it, where
the agent can't look, stands what the folder had when it last agreed with the store (`base`).
What differs from that is what the agent did; it goes to the store as versions, each under
the digest that the folder knew as its precondition. So nobody's newer text is overwritten,
and a runner that dies between a tool and the write-back leaves an edit that the next one finds.

How folder and store are made to agree is `services.worker.memory`; `mount` says when, `service`
asks the store.
"""

from services.worker.runner.workspace.memory.mount import MemoryMount

__all__ = ["MemoryMount"]
