"""The work queue of self-hosted environments.

Tables (schema `worker`): `work_items`.
Rpcs: `QueueService`.
"""
