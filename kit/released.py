"""Program code that only the start needed, given back.

    release_code()                                  # once, when a process has started

What a library does as it is loaded touches megabytes of its code, and the kernel maps a few pages around each that is
touched. All of it counts as resident for as long as the process lives, though most is never run again. Given back, the
pages that are needed come again one by one from the kernel's cache of files, for about a microsecond each.

What is saved: what each process is counted with. In the memory of the machine the pages lie once for all processes, and
stay there until the kernel needs the room; it takes those first that nobody has mapped.

Only segments that the linker maps read-only are named, so no page of them can hold anything that a file does not.
Elsewhere than on Linux this does nothing.
"""

import ctypes
import sys
from typing import Any

# Names of <elf.h> and <sys/mman.h>.
_PT_LOAD, _PF_W = 1, 2
_MADV_DONTNEED = 4


class _Segment(ctypes.Structure):
    """Elf64_Phdr."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("physical", ctypes.c_uint64),
        ("in_file", ctypes.c_uint64),
        ("in_memory", ctypes.c_uint64),
        ("align", ctypes.c_uint64),
    ]


class _Loaded(ctypes.Structure):
    """The first members of struct dl_phdr_info."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("segments", ctypes.POINTER(_Segment)),
        ("count", ctypes.c_uint16),
    ]


_VISITOR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Loaded), ctypes.c_size_t, ctypes.c_void_p)


def release_code() -> int:
    """How many bytes of read-only segments were named to the kernel."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return 0
    library = ctypes.CDLL(None)
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page = ctypes.CDLL(None).getpagesize()
    named = 0

    def visit(loaded: Any, _size: int, _data: int | None) -> int:
        nonlocal named
        entry = loaded.contents
        for segment in entry.segments[: entry.count]:
            if segment.type == _PT_LOAD and not segment.flags & _PF_W:
                # Whole pages inside: what a segment shares with its neighbour is left alone.
                start = -(-(entry.base + segment.address) // page) * page
                end = (entry.base + segment.address + segment.in_file) // page * page
                if end > start and library.madvise(start, end - start, _MADV_DONTNEED) == 0:
                    named += end - start
        return 0

    library.dl_iterate_phdr(_VISITOR(visit), None)
    return named
