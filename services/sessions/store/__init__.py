"""SQL of the sessions service: one method, one statement."""
