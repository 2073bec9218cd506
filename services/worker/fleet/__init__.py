"""The fleet program `managed-agents worker poll`: work of self-hosted environments on an operator's machine.

It talks HTTP to the gateway and to nothing else, holds nothing durable but folders below its workdir, and serves the
protocol that the environment reports: `tool/` runs single commands and file operations, `session/` whole sessions.
`app.run` is the entry; the command line loads it when it is asked for.
"""
