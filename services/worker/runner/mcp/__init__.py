"""Servers of tools that agents name: connections, who may call what, and what comes back.

Nothing here imports the protocol's package but `connection`, `http` and `stdio`, which are loaded beside the event loop
when the first session needs them. A session without such servers costs nothing.
"""
