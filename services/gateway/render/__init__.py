"""Public JSON of each resource, as bytes: one function per resource, both projections.

Parts that a service rendered are spliced in as they came; nothing is decoded.
"""
