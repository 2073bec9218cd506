"""Pure rules of the vault: sealing and the settings document."""
