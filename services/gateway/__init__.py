"""The gateway: the platform's HTTP face, and the only process that strangers reach.

It owns no table and no state. It authenticates, admits, checks the shape of each
request, asks one service over gRPC and renders the answer, so any number of copies
can run side by side.

Tables: none. Rpcs: none offered. Subjects read: `sessions.live.*`,
`sessions.preview.*` (both only hints for live streams).
"""
