"""What a file may be called, what it is, how long it lasts, and what its text begins with.

Names come from anywhere: only the last component is kept, without characters that steer a terminal, a path or the
direction of text. Nothing here refuses a name; it is made harmless instead.
"""

import mimetypes
import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from services.sessions.domain.file_errors import FileExpired, FileNotDownloadable, InvalidArtifactPath, InvalidFile

MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_OUTPUT_BYTES = 100 * 1024 * 1024
MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 1024
MAX_PREVIEW_CHARACTERS = 4_000
# As many bytes as that many characters can have.
PREVIEW_BYTES = MAX_PREVIEW_CHARACTERS * 4
SHORTEST_LIFE_SECONDS, LONGEST_LIFE_SECONDS = 3_600, 7_776_000
UNNAMED = "unnamed"
OCTETS = "application/octet-stream"
ARTIFACTS = "/artifacts/"
OUTPUTS = "/mnt/session/outputs/"

_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_TEXTUAL = re.compile(r"text/.+|.+\+(json|xml|yaml)")
_TEXTS = frozenset(
    f"application/{name}"
    for name in ("json", "x-ndjson", "jsonl", "yaml", "x-yaml", "xml", "toml", "javascript", "x-sh", "sql", "csv")
)
_EXTRA_TYPES = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
    ".toml": "application/toml",
    ".webp": "image/webp",
}
_EXTENSIONS = {
    "application/json": ".json",
    "application/octet-stream": "",
    "application/pdf": ".pdf",
    "application/yaml": ".yaml",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/plain": ".txt",
}
# The platform's own table: what a file is must not depend on the host.
_TYPES = mimetypes.MimeTypes(filenames=())
# Control, format (with every switch of text direction) and half characters, line and paragraph separators.
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class Purpose(StrEnum):
    """How a file came to be."""

    UPLOAD = "upload"
    OUTPUT = "output"
    ARTIFACT = "artifact"
    MOUNT = "mount"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One row, as a reader finds it."""

    id: str
    purpose: str
    name: str
    media_type: str
    size_bytes: int
    sha256: str
    downloadable: bool
    session_id: str
    path: str
    preview: str | None
    preview_truncated: bool
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    archived_at: datetime | None

    def require_readable(self, now: datetime, *, for_session: bool) -> None:
        """FileExpired or FileNotDownloadable where its bytes are not to be had."""
        if self.expires_at is not None and self.expires_at <= now:
            raise FileExpired(f"File {self.id} has expired, and its content is gone.", file_id=self.id)
        if not (self.downloadable or for_session):
            raise FileNotDownloadable(f"File {self.id} can't be downloaded: only sessions read it.", file_id=self.id)


def safe_name(given: str, media_type: str) -> str:
    """The last component of a name, without anything that could do harm; `unnamed` where nothing is left."""
    last = re.split(r"[/\\]", given)[-1]
    plain = "".join(each for each in unicodedata.normalize("NFC", last) if unicodedata.category(each) not in _HARMFUL)
    plain = " ".join(plain.split()).strip()
    if not plain.strip(". "):
        return UNNAMED + _extension(media_type)
    return _shortened(plain)


def read_media_type(given: str, name: str) -> str:
    """The declared media type without its parameters, or what the name tells where none is declared."""
    declared = given.partition(";")[0].strip().lower()
    if declared and not _MEDIA_TYPE.fullmatch(declared):
        raise InvalidFile("media_type must be a type and a subtype, such as text/plain.", field="media_type")
    return declared or _told_by(name)


def is_textual(media_type: str) -> bool:
    """Whether a preview of such a file makes sense."""
    return media_type in _TEXTS or _TEXTUAL.fullmatch(media_type) is not None


def preview_of(head: bytes, size: int, media_type: str) -> tuple[str | None, bool]:
    """The beginning of a text and whether more follows, from its first bytes; (None, False) where it is no text."""
    if not is_textual(media_type):
        return None, False
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character may be cut in two where the head ends, and nowhere else.
        if len(head) >= size or error.start < len(head) - 3 or error.reason != "unexpected end of data":
            return None, False
        text = head[: error.start].decode("utf-8")
    if "\x00" in text:
        return None, False
    shown = text.removeprefix("\ufeff")[:MAX_PREVIEW_CHARACTERS]
    return shown, len(head) < size or len(shown) < len(text.removeprefix("\ufeff"))


def read_artifact_path(path: str) -> str:
    """A path under /artifacts/ that means the same everywhere."""
    problem = _problem_of_path(path, ARTIFACTS)
    if problem:
        raise InvalidArtifactPath(f"path {problem}, such as /artifacts/report.md.", field="path")
    return path


def read_output_path(path: str) -> str:
    """The sandbox path of an output."""
    if problem := _problem_of_path(path, OUTPUTS):
        raise InvalidFile(f"path {problem}.", field="path")
    return path


def expires_at(seconds: int, now: datetime) -> datetime | None:
    """When a file ends that lives for so many seconds; 0 is for ever."""
    if not seconds:
        return None
    if not SHORTEST_LIFE_SECONDS <= seconds <= LONGEST_LIFE_SECONDS:
        raise InvalidFile(
            f"expires_in_seconds must be from {SHORTEST_LIFE_SECONDS} (an hour) to {LONGEST_LIFE_SECONDS} (90 days).",
            field="expires_in_seconds",
        )
    return now + timedelta(seconds=seconds)


def _problem_of_path(path: str, root: str) -> str:
    if not path.startswith(root):
        return f"must start with {root}"
    if len(path.encode("utf-8", "replace")) > MAX_PATH_BYTES:
        return f"must have at most {MAX_PATH_BYTES} bytes"
    if "\\" in path or any(unicodedata.category(each) in _HARMFUL for each in path):
        return "must have no backslash and no control character"
    if any(segment in ("", ".", "..") for segment in path.removeprefix(root).split("/")):
        return f"must go on behind {root} without empty segments, . or .."
    return ""


def _told_by(name: str) -> str:
    extension = name[name.rfind(".") :].lower() if "." in name else ""
    return _EXTRA_TYPES.get(extension) or _TYPES.guess_type(f"x{extension}")[0] or OCTETS


def _extension(media_type: str) -> str:
    known = _EXTENSIONS.get(media_type)
    return known if known is not None else _TYPES.guess_extension(media_type) or ""


def _shortened(name: str) -> str:
    """At most MAX_NAME_BYTES, keeping the extension."""
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    stem, dot, extension = name.rpartition(".")
    tail = f".{extension}" if dot and stem and len(extension.encode()) <= 16 else ""
    kept = name.encode()[: MAX_NAME_BYTES - len(tail.encode())].decode("utf-8", "ignore")
    return kept.rstrip() + tail
