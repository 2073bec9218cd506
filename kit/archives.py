"""Zip archives of strangers, read without trusting a word of them.

    files = read_zip(data, Limits())          # ArchiveRefused names the entry and what is wrong with it
    data = write_zip(files)                   # the same files give the same bytes

An archive is judged by its directory before it is unpacked, and what is unpacked is counted as it comes, so a bomb
costs no more than the limits. Nothing is written: the caller gets names and bytes. A name is relative, plain and unlike
every other one, also on a disk that ignores case or keeps another Unicode form (`check_names`). Links, devices and
encrypted entries are refused; folders are what the names of files say.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_NAME_BYTES = 1_024
MAX_SEGMENT_BYTES = 255
MAX_SEGMENTS = 24

_DRIVE = re.compile(r"[A-Za-z]:")
_UNIX_HOSTS = (3, 19)
_ENCRYPTED = 0x1
# What the reader of archives raises where one is damaged: it believes offsets and sizes before it looks.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError),
    *(ValueError, IndexError, KeyError, OverflowError),
)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Where the directory of an archive is found: at its very end, before a comment of at most 64 KiB.
_END = b"PK\x05\x06"
_END_BYTES = 22
_END_SEARCH_BYTES = _END_BYTES + 0xFFFF
_END64 = b"PK\x06\x07"
# What an entry takes in the directory at most: its name, and as much again for what writers add.
_DIRECTORY_ENTRY_BYTES = 46 + 2 * MAX_NAME_BYTES
# Smaller than this no ratio says anything.
_RATIO_FREE_BYTES = 1024 * 1024
_FIRST_MOMENT = (1980, 1, 1, 0, 0, 0)
# What one operating system leaves in every archive that it makes.
_LITTER = re.compile(r"(?:^|/)(?:__MACOSX/.*|\.DS_Store)\Z")


class ArchiveRefused(ValueError):
    """The archive breaks a rule; the text says which, and names the entry."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an archive may hold."""

    files: int = 1_000
    total_bytes: int = 30 * 1024 * 1024
    # How many times larger than packed a file may be.
    ratio: int = 200


@dataclass(frozen=True, slots=True)
class PackedFile:
    """One file of an archive."""

    name: str
    data: bytes
    executable: bool = False


def read_zip(data: bytes, limits: Limits) -> list[PackedFile]:
    """The files of a zip archive. ArchiveRefused where it is none, or breaks a rule."""
    _check_end(data, limits)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [(clean_name(_raw_name(entry)), entry) for entry in archive.infolist() if not _is_litter(entry)]
            _check_entries(entries, limits, len(data))
            files = [(name, entry) for name, entry in entries if not _is_folder(entry)]
            check_names(name for name, _ in files)
            return _unpack(archive, files, limits)
    except ArchiveRefused:
        raise
    except _DAMAGE as broken:
        raise ArchiveRefused(f"The archive is damaged: {_reason(broken)}.") from None


def write_zip(files: Iterable[PackedFile]) -> bytes:
    """The files as an archive that depends on nothing but them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for file in sorted(files, key=lambda file: file.name):
            entry = zipfile.ZipInfo(file.name, _FIRST_MOMENT)
            entry.create_system = _UNIX_HOSTS[0]
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if file.executable else 0o644)) << 16
            archive.writestr(entry, file.data)
    return buffer.getvalue()


def clean_name(name: str) -> str:
    """The name of a file or folder as it may be used. ArchiveRefused where it leads anywhere else or is not plain."""
    shown = repr(name[:100])
    if name.startswith("/"):
        raise ArchiveRefused(f"The entry {shown} is an absolute path; names must be relative.")
    if "\\" in name or _DRIVE.match(name):
        raise ArchiveRefused(f"The entry {shown} has a backslash or a drive in it; names use / between plain parts.")
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in name):
        raise ArchiveRefused(f"The entry {shown} has a character in its name that is none of a name, such as NUL.")
    parts = name.removesuffix("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ArchiveRefused(f"The entry {shown} has an empty part, . or .. in its name.")
    sizes = [len(part.encode()) for part in parts]
    if max(sizes) > MAX_SEGMENT_BYTES or sum(sizes) + len(sizes) > MAX_NAME_BYTES or len(parts) > MAX_SEGMENTS:
        raise ArchiveRefused(f"The entry {shown} has a name that is too long or too deep.")
    return "/".join(parts)


def check_names(names: Iterable[str]) -> None:
    """Refuses names of files that would meet on some disk: repeated, or unlike in case or Unicode form only."""
    spelled: dict[str, str] = {}
    files: set[str] = set()
    for name in names:
        key = _folded(name)
        if key in files:
            raise ArchiveRefused(f"The entry {name[:100]!r} stands twice, or differs from another in case only.")
        files.add(key)
        parts = name.split("/")
        for length in range(1, len(parts) + 1):
            path = "/".join(parts[:length])
            if spelled.setdefault(_folded(path), path) != path:
                raise ArchiveRefused(f"The entry {path[:100]!r} differs from another in case or Unicode form only.")
    for key in files:
        parts = key.split("/")
        for length in range(1, len(parts)):
            if "/".join(parts[:length]) in files:
                raise ArchiveRefused(f"The entry {key[:100]!r} lies below a file.")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _check_end(data: bytes, limits: Limits) -> None:
    """Looks at what the archive says of its directory, before the directory is read."""
    at = data.rfind(_END, max(0, len(data) - _END_SEARCH_BYTES))
    if at < 0 or len(data) - at < _END_BYTES:
        raise ArchiveRefused("The data is no zip archive.")
    if data.rfind(_END64, max(0, at - _END_BYTES), at) >= 0:
        raise ArchiveRefused("The archive has a directory for more than it may hold (zip64).")
    entries, directory_bytes = struct.unpack_from("<HI", data, at + 10)
    # Folders may have entries of their own.
    most = 2 * limits.files
    if entries > most or directory_bytes > most * _DIRECTORY_ENTRY_BYTES:
        raise ArchiveRefused(f"The archive has {entries} entries; at most {limits.files} files are taken.")


def _raw_name(entry: zipfile.ZipInfo) -> str:
    # `filename` ends before the first NUL, which would hide what follows.
    return entry.orig_filename


def _is_litter(entry: zipfile.ZipInfo) -> bool:
    return bool(_LITTER.search(_raw_name(entry)))


def _mode(entry: zipfile.ZipInfo) -> int:
    return entry.external_attr >> 16 if entry.create_system in _UNIX_HOSTS else 0


def _is_folder(entry: zipfile.ZipInfo) -> bool:
    return _raw_name(entry).endswith("/")


def _check_entries(entries: Sequence[tuple[str, zipfile.ZipInfo]], limits: Limits, archive_bytes: int) -> None:
    if len(entries) > 2 * limits.files or sum(not _is_folder(entry) for _, entry in entries) > limits.files:
        raise ArchiveRefused(f"The archive has more than {limits.files} files.")
    total = packed = 0
    for name, entry in entries:
        kind = stat.S_IFMT(_mode(entry))
        expected = stat.S_IFDIR if _is_folder(entry) else stat.S_IFREG
        if kind not in (0, expected):
            raise ArchiveRefused(f"The entry {name[:100]!r} is a link or no plain file.")
        if entry.flag_bits & _ENCRYPTED:
            raise ArchiveRefused(f"The entry {name[:100]!r} is encrypted.")
        if entry.compress_type not in _METHODS:
            raise ArchiveRefused(f"The entry {name[:100]!r} is packed in an unusual way; use deflate or none.")
        if _is_folder(entry) and entry.file_size:
            raise ArchiveRefused(f"The entry {name[:100]!r} is a folder with content.")
        if entry.file_size > max(_RATIO_FREE_BYTES, limits.ratio * entry.compress_size):
            raise ArchiveRefused(f"The entry {name[:100]!r} is more than {limits.ratio} times as large as packed.")
        total += entry.file_size
        packed += entry.compress_size
    if total > limits.total_bytes:
        raise ArchiveRefused(f"The archive holds {total} bytes unpacked; at most {limits.total_bytes} are taken.")
    if packed > archive_bytes:
        raise ArchiveRefused("The entries of the archive overlap.")


def _unpack(
    archive: zipfile.ZipFile, entries: Sequence[tuple[str, zipfile.ZipInfo]], limits: Limits
) -> list[PackedFile]:
    files: list[PackedFile] = []
    left = limits.total_bytes
    for name, entry in entries:
        with archive.open(entry) as stream:
            data = stream.read(left + 1)
        left -= len(data)
        if left < 0 or len(data) != entry.file_size:
            raise ArchiveRefused(f"The entry {name[:100]!r} is larger than the archive says.")
        files.append(PackedFile(name, data, bool(_mode(entry) & 0o111)))
    return files


def _reason(broken: Exception) -> str:
    text = str(broken).rstrip(".") or type(broken).__name__
    return text[:200]
