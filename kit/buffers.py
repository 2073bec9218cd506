"""How the C library deals with our memory: one heap for all threads, and large buffers kept for the next one.

    share_one_heap()                               # once, before a process has threads
    keep_buffers()                                 # once, when a process starts that streams bytes

It makes a heap for nearly every thread, and each keeps what it once grew to. Ours have the interpreter's lock and
seldom wait for each other, so one heap costs no time: after uploads the sessions service holds 30 MB less.

The C library gives every buffer of some hundred kilobytes back to the kernel as soon as it is free, and the kernel has
to clear the pages of the next one: for a stream in pieces of a megabyte that costs more than all copying. Told to keep
a few megabytes, it uses the same ones again. Elsewhere than on that library this does nothing.
"""

import ctypes

# Names of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
# What may lie unused at most, and from which size on a buffer is the kernel's own business.
KEPT_BYTES = 8 * 1024 * 1024
LARGE_BYTES = 4 * 1024 * 1024


def share_one_heap() -> bool:
    """Whether the C library took it."""
    return _take((_M_ARENA_MAX, 1))


def keep_buffers() -> bool:
    """Whether the C library took it."""
    return _take((_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_MMAP_THRESHOLD, LARGE_BYTES))


def _take(*options: tuple[int, int]) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(bool(mallopt(name, value)) for name, value in options)
