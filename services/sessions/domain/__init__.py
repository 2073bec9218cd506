"""Pure rules of the sessions service."""
