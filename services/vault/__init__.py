"""The vault service: whatever holds a secret, sealed at rest.

Tables (schema `vault`): `master_key_checks`, `settings`.
Rpcs: `SettingsService`.
"""
