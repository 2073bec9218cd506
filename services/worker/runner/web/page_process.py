"""The process that turns pages into text: `python -m services.worker.runner.web.page_process`.

Reads frames from standard input, each a length and a page in UTF-8, and answers with a length and the text. What a page
may do to a parser (memory, time without end, depth) happens here, where it is bounded and holds no secret; whoever
started this kills it when an answer takes too long. It ends with its input, or when nobody has asked for a while.
"""

import contextlib
import os
import re
import resource
import select
import struct
import sys
import warnings

IDLE_SECONDS = 120.0
MEMORY_BYTES = 2 * 1024 * 1024 * 1024
DEPTH = 20_000
LENGTH = struct.Struct("<I")
UNREADABLE = 0xFFFFFFFF
_SOURCE, _TARGET = 0, 1
# Of no use to a reader.
_LEFT_OUT = ("title", "script", "style", "noscript", "template", "svg", "canvas", "iframe", "object", "embed", "head")
_BLANK_LINES = re.compile(r"\n\s*\n\s*\n+")


def page_text(html: str) -> str:
    """The title and the content of a page, as Markdown."""
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    with warnings.catch_warnings():
        # A page that looks like XML or like a file's name is a page all the same.
        warnings.simplefilter("ignore")
        soup = BeautifulSoup(html, "html.parser")
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    for element in soup.find_all(_LEFT_OUT):
        element.decompose()
    try:
        text = MarkdownConverter(heading_style="ATX", strip=["img"]).convert_soup(soup)
    except RecursionError:
        # Nested deeper than anything that was written to be read.
        text = soup.get_text("\n", strip=True)
    text = _BLANK_LINES.sub("\n\n", text).strip()
    return f"{title}\n\n{text}" if title else text


def answer(data: bytes) -> bytes:
    """One frame's answer."""
    try:
        text = page_text(data.decode("utf-8", "replace")).encode("utf-8", "replace")
    except (RecursionError, MemoryError):
        return LENGTH.pack(UNREADABLE)
    return LENGTH.pack(len(text)) + text


def main() -> None:
    """Serve until the input ends."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(DEPTH)
    while select.select([_SOURCE], [], [], IDLE_SECONDS)[0]:
        head = _exactly(LENGTH.size)
        data = _exactly(*LENGTH.unpack(head)) if head else None
        if data is None:
            return
        remaining = memoryview(answer(data))
        while remaining:
            remaining = remaining[os.write(_TARGET, remaining) :]


def _exactly(count: int) -> bytes | None:
    """The next bytes; None where the input ends before."""
    data = bytearray()
    while len(data) < count:
        chunk = os.read(_SOURCE, count - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


if __name__ == "__main__":
    main()
