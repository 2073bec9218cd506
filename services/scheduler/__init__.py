"""The scheduler service: what happens by the clock.

Tables (schema `scheduler`): `ticker_leases`.
Rpcs: `SchedulerService`.
"""
