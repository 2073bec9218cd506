"""The session protocol: one item is one session whose tool calls are run here."""
