"""The work queue of self-hosted environments.

Tables (schema `worker`): `work_items`, `ended_sessions`, `polling_workers`, `processed_messages`.
Rpcs: `QueueService`, `SessionWorkService`.
"""
