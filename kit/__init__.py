"""The shared tools of all services: they know no service, no business noun and no contract but the call context.

A module belongs here once two services need it. Each owns one mechanism (time, ids, errors, SQL transactions, the
outbox, rpc, life of a process …) and says in its docstring what it promises when something fails.
"""
