"""Memory of large buffers, kept for the next one.

    keep_buffers()                                 # once, when a process starts that streams bytes

The C library gives every buffer of some hundred kilobytes back to the kernel as soon as it is free, and the kernel has
to clear the pages of the next one: for a stream in pieces of a megabyte that costs more than all copying. Told to keep
a few megabytes, it uses the same ones again. Elsewhere than on that library this does nothing.
"""

import ctypes

# Names of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# What may lie unused at most, and from which size on a buffer is the kernel's own business.
KEPT_BYTES = 8 * 1024 * 1024
LARGE_BYTES = 4 * 1024 * 1024


def keep_buffers() -> bool:
    """Whether the C library took it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES))
