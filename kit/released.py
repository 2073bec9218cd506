"""Program code that only the start needed, given back.

    release_code()                                  # once, when a process has started

What a library does as it is loaded touches megabytes of its code, and the kernel maps a few pages around each that is
touched. All of it counts as resident for as long as the process lives, though most is never run again. Given back, the
pages that are needed come again one by one from the kernel's cache of files, for about a microsecond each.

What is saved: what each process is counted with. In the memory of the machine the pages lie once for all processes, and
stay there until the kernel needs the room; it takes those first that nobody has mapped.

Only segments that the linker maps read-only are named, so no page of them can hold anything that a file does not. They
are found in the kernel's list of mappings. The C library has one too, but whoever walks it holds the lock that a thread
needs to load a library: one that imports holds the interpreter's lock meanwhile, and each would wait for the other.
Elsewhere than on Linux this does nothing.
"""

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

# Names of <elf.h> and <sys/mman.h>.
_MAGIC = b"\x7fELF"
_PT_LOAD, _PF_W = 1, 2
_MADV_DONTNEED = 4
# Elf64_Ehdr from e_phoff on, and Elf64_Phdr as far as it is looked at.
_HEADER_OFFSET, _HEADER = 32, struct.Struct("<QQIHHH")
_SEGMENT = struct.Struct("<IIQQQQ")


class _Mapping(NamedTuple):
    """A line of the kernel's list that is of a file."""

    start: int
    end: int
    is_writable: bool
    offset: int
    file: tuple[str, str]


class _Segment(NamedTuple):
    """What a file has loaded, where it lies and where it comes from."""

    start: int
    end: int
    offset: int


def release_code() -> int:
    """How many bytes of read-only segments were named to the kernel."""
    if sys.platform != "linux" or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    named = 0
    for start, end in _ranges():
        if madvise(start, end - start, _MADV_DONTNEED) == 0:
            named += end - start
    return named


def _ranges() -> list[tuple[int, int]]:
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        # A process that may not be looked into, not even by itself.
        return []
    try:
        by_file: dict[tuple[str, str], list[_Mapping]] = {}
        for mapping in _mappings():
            by_file.setdefault(mapping.file, []).append(mapping)
        return [
            each
            for mappings in by_file.values()
            for first in mappings
            if first.offset == 0
            for segment in _read_only(memory, first.start)
            for each in _inside(segment, mappings)
        ]
    finally:
        os.close(memory)


def _mappings() -> Iterator[_Mapping]:
    with open("/proc/self/maps", "rb") as lines:
        for line in lines.read().decode("utf-8", "replace").splitlines():
            addresses, rights, offset, device, inode = line.split(maxsplit=5)[:5]
            if inode != "0":
                start, end = addresses.split("-")
                yield _Mapping(int(start, 16), int(end, 16), "w" in rights, int(offset, 16), (device, inode))


def _read_only(memory: int, start: int) -> list[_Segment]:
    """The whole pages of a library's read-only segments; what one shares with its neighbour is left alone."""
    try:
        header = os.pread(memory, mmap.PAGESIZE, start)
    except OSError:
        return []
    if not header.startswith(_MAGIC):
        return []
    table, _, _, _, size, count = _HEADER.unpack_from(header, _HEADER_OFFSET)
    if size < _SEGMENT.size or table + size * count > len(header):
        return []
    loaded = [
        segment
        for segment in (_SEGMENT.unpack_from(header, table + size * number) for number in range(count))
        if segment[0] == _PT_LOAD
    ]
    bases = [start - _down(address - offset) for _, _, offset, address, _, _ in loaded if _down(offset) == 0]
    found: list[_Segment] = []
    for _, flags, offset, address, _, in_file in loaded if bases else ():
        if not flags & _PF_W:
            at = bases[0] + address
            found.append(_Segment(_up(at), _down(at + in_file), offset + _up(at) - at))
    return found


def _inside(segment: _Segment, mappings: list[_Mapping]) -> Iterator[tuple[int, int]]:
    """The part that is still mapped as the linker did it."""
    for mapping in mappings:
        start, end = max(segment.start, mapping.start), min(segment.end, mapping.end)
        is_same = mapping.offset - mapping.start == segment.offset - segment.start
        if start < end and is_same and not mapping.is_writable:
            yield start, end


def _down(address: int) -> int:
    return address // mmap.PAGESIZE * mmap.PAGESIZE


def _up(address: int) -> int:
    return -_down(-address)
