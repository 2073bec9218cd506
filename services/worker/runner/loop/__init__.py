"""The turn loop: `claims` gets turns under leases, and each `turn` runs as one task over its context and journal."""
