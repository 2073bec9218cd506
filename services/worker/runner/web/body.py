"""Bodies of strangers: which are text, and how they are read without ever holding more than is allowed."""

import codecs
import re
import zlib
from dataclasses import dataclass

from services.worker.runner.web.policy import WebRefused

HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_TEXT_TYPES = frozenset(
    {
        *("application/json", "application/ld+json", "application/x-ndjson", "application/jsonl"),
        *("application/xml", "application/yaml", "application/x-yaml", "application/toml"),
        *("application/javascript", "application/ecmascript", "application/x-sh", "application/sql"),
        *("application/graphql", "application/x-httpd-php", "application/rtf", "application/x-tex"),
    }
)
_TEXT_ENDINGS = ("+json", "+xml", "+yaml", "+text")
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,64}/[a-z0-9!#$&^_.+-]{1,64}")
_CHARSET = re.compile(r"charset\s*=\s*\"?([A-Za-z0-9._:+-]{1,40})", re.IGNORECASE)
_META_BYTES = 2_048
# Text encodings that are none of documents, and slow or able to hide what they hold.
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "utf-7"})


@dataclass(frozen=True, slots=True)
class MediaType:
    """What an answer says that it is."""

    name: str
    charset: str = ""

    @property
    def is_html(self) -> bool:
        """Whether it is a page to be turned into text."""
        return self.name in HTML_TYPES

    @property
    def is_text(self) -> bool:
        """Whether it may be decoded at all."""
        return (
            self.is_html
            or self.name.startswith("text/")
            or self.name in _TEXT_TYPES
            or self.name.endswith(_TEXT_ENDINGS)
        )


def read_media_type(header: str | None) -> MediaType:
    """From a content-type header; one that can't be read stands for bytes."""
    name, _, parameters = (header or "").partition(";")
    name = name.strip().lower()
    if not _MEDIA_TYPE.fullmatch(name):
        return MediaType("application/octet-stream")
    found = _CHARSET.search(parameters)
    return MediaType(name, found.group(1) if found else "")


class BoundedBody:
    """Collects a body, unpacked, and refuses more than `limit_bytes` of it, packed or not."""

    def __init__(self, encoding: str | None, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._packed = 0
        self._data = bytearray()
        self._name = (encoding or "identity").strip().lower()
        if self._name not in ("identity", "", "gzip", "x-gzip", "deflate"):
            raise WebRefused(f"the server packed its answer as {self._name[:40]!r}, which was not asked for.")
        # Both forms are told by their first bytes.
        self._unpacker = zlib.decompressobj(47) if self._name not in ("identity", "") else None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the wire. WebRefused where it is too much."""
        self._packed += len(chunk)
        if self._packed > self._limit:
            raise self._too_large()
        if self._unpacker is None:
            self._data += chunk
            return
        try:
            while chunk and not self._unpacker.eof:
                self._data += self._unpacker.decompress(chunk, self._limit + 1 - len(self._data))
                if len(self._data) > self._limit:
                    raise self._too_large()
                chunk = self._unpacker.unconsumed_tail
        except zlib.error:
            self._retry_raw(chunk)

    def finish(self) -> bytes:
        """All of it."""
        if self._unpacker is not None and self._packed and not self._unpacker.eof:
            raise WebRefused("the server's answer ends before it is complete.")
        return bytes(self._data)

    def _retry_raw(self, chunk: bytes) -> None:
        # Some servers send deflate without the header that belongs to it.
        if self._name != "deflate" or self._data or self._packed != len(chunk):
            raise WebRefused("the server's answer can't be unpacked.") from None
        self._name, self._packed, self._unpacker = "raw deflate", 0, zlib.decompressobj(-zlib.MAX_WBITS)
        self.feed(chunk)

    def _too_large(self) -> WebRefused:
        return WebRefused(f"the answer is larger than {self._limit} bytes, the most that is read.")


def decode(data: bytes, media_type: MediaType) -> str:
    """The text of a body; what no encoding explains is replaced."""
    for name in (media_type.charset, _meta_charset(data) if media_type.is_html else "", "utf-8"):
        if not name:
            continue
        try:
            known = codecs.lookup(name).name
            if known in _NO_CHARSETS:
                continue
            return data.decode("utf-8-sig" if known == "utf-8" else known, "replace")
        except (LookupError, UnicodeError):
            continue
    return data.decode("utf-8", "replace")


def _meta_charset(data: bytes) -> str:
    found = _CHARSET.search(data[:_META_BYTES].decode("latin-1"))
    return found.group(1) if found else ""
