"""What the queue does with its items: shared writes, matching, waiting, sweeps.

`desk` writes every change of an item, `backlog` holds what waits for a worker, `matching` brings both together,
`waits` answers those who wait for an end, `sweeping` does what nobody asks for.
"""
