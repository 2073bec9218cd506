"""Cloning repositories: a real git that knows no secret and reaches nothing but the gateway of its clone.

`gateway` stands between git and the host of a repository, and is the only one that knows the token. `commands` runs git
with the least rights. `cloning` is the order of the steps and what a failure is called.
"""
