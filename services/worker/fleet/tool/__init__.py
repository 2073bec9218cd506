"""The tool protocol: one item is one exec, read, write or list in the workdir."""
