"""The vault service: whatever holds a secret, sealed at rest or kept as a digest.

Tables (schema `vault`): `master_key_checks`, `sealed_keys`, `settings`, `effective_settings`, `vaults`, `credentials`,
`credential_audit`, `api_keys`, `worker_keys`, `key_generation`, `repository_tokens`, `idempotency`, `outbox`.
Rpcs: `SettingsService`, `KeysService`, `VaultsService`, `InjectionService`, `RepositorySecretsService`,
`SealingService`.
Subjects: `vault.events.<workspace_id>` (stream `VAULT`), `vault.rotated.<workspace_id>` (a hint).
"""
