"""What the queue does with its items: shared writes, matching, waiting, sweeps.

`desk` writes every change of an item, `pool` knows what waits for a worker, `matching` brings both together,
`waits` answers those who wait for an end, `sweeping` does what nobody asks for. Of the session protocol,
`session_duties` makes and follows up items, and `session_room` holds the polls that wait for one.
"""
