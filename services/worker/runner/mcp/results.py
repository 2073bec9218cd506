"""From what a server answers to what a model reads. Pure.

Texts are joined in their order; a picture that models take stands among them as a mark and follows as a block. What no
model takes (sound, other files) is told of in a line, a link to a resource as a line with its address. Structured
content is shown as JSON, unless a text says the same.
"""

import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

PICTURES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
# What vendors take of one picture, and what one result may bring along in all.
MOST_PICTURE_CHARS = 5 * 1024 * 1024
MOST_PICTURES_CHARS = 8 * 1024 * 1024
MOST_PICTURES = 20
EMPTY = "(The tool answered without any content.)"


@dataclass(slots=True)
class Rendered:
    """A result: one text, pictures in the order of their marks, and whether the tool failed."""

    text: str
    is_error: bool = False
    pictures: list[dict[str, Any]] = field(default_factory=list)


def render(result: Mapping[str, Any]) -> Rendered:
    """Read a result of `tools/call` as it stands on the wire."""
    parts: list[str] = []
    pictures = _Pictures()
    content: Sequence[Mapping[str, Any]] = result.get("content") or ()
    for block in content:
        if part := _part(block, pictures):
            parts.append(part)
    structured = result.get("structuredContent")
    if structured is not None and not any(_says(block, structured) for block in content):
        parts.append(orjson.dumps(structured).decode())
    return Rendered("\n".join(parts) or EMPTY, bool(result.get("isError")), pictures.taken)


class _Pictures:
    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self._chars = 0

    def take(self, media_type: str, data: str) -> str:
        """The mark of a picture; a note where it can't be shown."""
        size = f"{len(data) * 3 // 4} bytes"
        if media_type not in PICTURES:
            return f"[{media_type or 'picture'}, {size}, not shown: models don't take it]"
        too_many = len(self.taken) >= MOST_PICTURES or self._chars + len(data) > MOST_PICTURES_CHARS
        if too_many or len(data) > MOST_PICTURE_CHARS:
            return f"[{media_type}, {size}, not shown: too large]"
        if not _is_base64(data):
            return f"[{media_type}, not shown: damaged]"
        self._chars += len(data)
        source = {"type": "base64", "media_type": media_type, "data": data}
        self.taken.append({"type": "image", "source": source})
        return f"[picture {len(self.taken)}]"


def _part(block: Mapping[str, Any], pictures: _Pictures) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text") or "")
    if kind == "image":
        return pictures.take(str(block.get("mimeType") or "").lower(), str(block.get("data") or ""))
    if kind == "audio":
        return f"[{block.get('mimeType') or 'audio'}, {len(str(block.get('data') or '')) * 3 // 4} bytes, not shown]"
    if kind == "resource_link":
        return _link(block)
    if kind == "resource":
        return _resource(block.get("resource") or {}, pictures)
    return f"[content of type {kind}, not shown]"


def _link(block: Mapping[str, Any]) -> str:
    name = block.get("title") or block.get("name") or "resource"
    about = "; ".join(str(block[key]) for key in ("mimeType", "description") if block.get(key))
    return f"[resource {name}: {block.get('uri')}{f' ({about})' if about else ''}]"


def _resource(resource: Mapping[str, Any], pictures: _Pictures) -> str:
    head = f"[resource {resource.get('uri')}]"
    if "text" in resource:
        return f"{head}\n{resource['text']}"
    media_type, data = str(resource.get("mimeType") or "").lower(), str(resource.get("blob") or "")
    if media_type.startswith("image/"):
        return f"{head} {pictures.take(media_type, data)}"
    return f"{head} [{media_type or 'file'}, {len(data) * 3 // 4} bytes, not shown]"


def _says(block: Mapping[str, Any], structured: Any) -> bool:
    """Whether a text block holds the structured content already, as servers are asked to."""
    text = block.get("text")
    if block.get("type") != "text" or not isinstance(text, str):
        return False
    try:
        said = orjson.loads(text)
    except ValueError:
        said = text
    # A bare value is wrapped by servers, since older clients take objects only.
    return said == structured or structured in ({"result": said}, {"result": text})


def _is_base64(data: str) -> bool:
    try:
        return bool(binascii.a2b_base64(data.encode("ascii"), strict_mode=True))
    except (binascii.Error, UnicodeEncodeError):
        return False
