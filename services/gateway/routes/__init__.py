"""The served operations, one module per resource. Each exports OPERATIONS."""
