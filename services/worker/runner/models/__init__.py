"""Model vendors behind one protocol (`base`), made by name (`registry`), with the access that vault gives (`access`).

A vendor's SDK is imported by its own module only, and that module only when a workspace uses the vendor.
"""
