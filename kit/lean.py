"""Loading a library without the optional parts of it that nobody here uses.

    with without("aiohttp"):
        import nats

Some libraries look for an optional package and load all of it when it happens to be installed: for coloured tracebacks,
or for transports that we never open. Every process would pay for that with its start time and some megabytes. Inside
the block such a package can't be found; afterwards it can.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Make imports of these packages fail, unless they were loaded before."""
    hidden: list[str] = [name for name in packages if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    # What the import system documents for a module that must not be found.
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            if modules.get(name) is None:
                modules.pop(name, None)
