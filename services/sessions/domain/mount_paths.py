"""Where resources stand in a session's sandbox: rules on the paths that callers give, and the mapping. Pure.

A file's path is logical: `/data.csv` stands at `/mnt/session/uploads/data.csv`. A repository's path is one of the
sandbox, below `/workspace`. The rules hold for the path as it was given, before any mapping; nothing is normalised,
so what is accepted names one place only.
"""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from services.sessions.domain.resource_errors import InvalidMountPath, MountPathTaken

UPLOADS = "/mnt/session/uploads"
WORKSPACE = "/workspace"
MEMORY = "/mnt/memory"
MAX_PATH_BYTES = 1_024
MAX_SEGMENT_BYTES = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# In the published contract each run of anything else becomes one hyphen.
_NO_SLUG = re.compile(r"[^a-z0-9]+")


def check_path(path: str, field: str) -> str:
    """A path that names one place below a root, whole segments only; InvalidMountPath says which rule it breaks."""
    if not path.startswith("/"):
        raise _refused(field, "must be absolute, as /data.csv is")
    if "\\" in path:
        raise _refused(field, "must not contain a backslash")
    if _CONTROL.search(path):
        raise _refused(field, "must not contain NUL or other control characters")
    segments = path[1:].split("/")
    if segments == [""]:
        raise _refused(field, "must name something below the root")
    if "" in segments:
        raise _refused(field, "must not contain an empty segment")
    if "." in segments or ".." in segments:
        raise _refused(field, "must not contain the segments . and ..")
    try:
        sizes = [len(segment.encode()) for segment in segments]
    except UnicodeEncodeError:
        raise _refused(field, "must be text that UTF-8 can hold") from None
    if max(sizes) > MAX_SEGMENT_BYTES or sum(sizes) + len(sizes) > MAX_PATH_BYTES:
        raise _refused(field, f"takes up to {MAX_PATH_BYTES} bytes, {MAX_SEGMENT_BYTES} in a segment")
    return path


def file_path(mount_path: str | None, file_id: str, field: str, *, published: bool = False) -> str:
    """The sandbox path of a file that is given this logical path; blank or none is named by the file's id.

    In the published contract paths are those of the sandbox: one that lies in the uploads already stays where it is.
    """
    if mount_path is None or not mount_path.strip():
        return f"{UPLOADS}/{file_id}"
    path = check_path(mount_path, field)
    return path if published and path.startswith(f"{UPLOADS}/") else UPLOADS + path


def repository_path(mount_path: str | None, url: str, field: str) -> str:
    """The sandbox path of a repository; blank or none is named by the repository."""
    if mount_path is None or not mount_path.strip():
        return f"{WORKSPACE}/{repository_name(url)}"
    path = check_path(mount_path, field)
    if not path.startswith(f"{WORKSPACE}/"):
        raise _refused(field, f"of a repository must lie below {WORKSPACE}/")
    return path


def repository_name(url: str) -> str:
    """The last word of a repository's URL, as a folder can be called."""
    name = urlsplit(url).path.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return _UNSAFE.sub("-", name).strip(".-")[:100] or "repository"


def store_path(mount_path: str | None, name: str, taken: Iterable[str], field: str) -> str:
    """The sandbox path of a memory store; none is named by the store, with a number where that is taken."""
    if mount_path is not None:
        path = check_path(mount_path, field)
        if not path.startswith(f"{MEMORY}/"):
            raise _refused(field, f"of a memory store must lie below {MEMORY}/")
        return path
    slug = _NO_SLUG.sub("-", name.lower()).strip("-")[:64].strip("-") or "store"
    used = set(taken)
    path, number = f"{MEMORY}/{slug}", 2
    while path in used:
        path, number = f"{MEMORY}/{slug}-{number}", number + 1
    return path


def check_free(path: str, taken: Iterable[str], field: str) -> None:
    """Refuses a path that is taken, or that lies in or around one that is."""
    for other in taken:
        if path == other:
            raise MountPathTaken(f"{field}: {path} is the mount path of another resource.", field=field)
        if path.startswith(f"{other}/") or other.startswith(f"{path}/"):
            raise MountPathTaken(f"{field}: {path} and {other} lie within each other.", field=field)


def _refused(field: str, rule: str) -> InvalidMountPath:
    return InvalidMountPath(f"{field} {rule}.", field=field)
