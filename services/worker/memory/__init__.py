"""A memory store as a folder: how folder and store are made to agree, whoever can ask the store.

The runner does it over gRPC for its sandboxes, the fleet program over HTTP on an operator's machine. `tree` works on
the folder without following a link, `difference` is pure, `keeper` is one pass, `store` is what a pass asks of a store.
"""
