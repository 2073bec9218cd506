"""The command line: `managed-agents up | demo | doctor`.

It starts processes and talks to them over HTTP and gRPC health; it imports no service.
"""
