"""Multipart bodies: whatever the pieces that they arrive in, each part comes whole and in order, and bounds hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.gateway.errors import InvalidRequest, RequestTooLarge, UnsupportedMediaType
from services.gateway.operation.body import ClientGone
from services.gateway.operation.content import ByteRange, disposition, is_known, read_range
from services.gateway.operation.multipart import MAX_PARTS, Part, read_parts

BOUNDARY = "a-boundary-0123"


class FakeCall:
    def __init__(self, pieces: list[bytes], **headers: str) -> None:
        self.headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"} | headers
        self._messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": each, "more_body": True} for each in pieces
        ]
        self._messages.append({"type": "http.request", "body": b"", "more_body": False})
        self.asked = 0

    async def receive(self) -> dict[str, Any]:
        self.asked += 1
        return self._messages.pop(0)


def body_of(parts: list[tuple[str, bytes]]) -> bytes:
    head = '--{}\r\nX-Empty:\r\nContent-Disposition: form-data; name="{}"; filename="x"\r\nContent-Type: text/x\r\n\r\n'
    pieces = [head.format(BOUNDARY, name).encode() + content + b"\r\n" for name, content in parts]
    return b"".join(pieces) + f"--{BOUNDARY}--\r\n".encode()


async def read(body: bytes, size: int, max_bytes: int = 1_000_000, **headers: str) -> list[tuple[str, bytes]]:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    found: list[tuple[str, bytes]] = []
    async for piece in read_parts(FakeCall(pieces, **headers), max_bytes=max_bytes):  # type: ignore[arg-type]
        if isinstance(piece, Part):
            assert (piece.filename, piece.media_type) == ("x", "text/x")
            found.append((piece.name, b""))
        else:
            name, content = found.pop()
            found.append((name, content + piece))
    return found


NAMES = st.text(st.sampled_from("abc_[]é"), min_size=1, max_size=6)
TRICKY = st.lists(st.sampled_from([b"\r\n", b"--", b"\r", b"\n", f"--{BOUNDARY[:-1]}".encode(), b"x", b"\r\n--"])).map(
    b"".join
)


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.tuples(NAMES, TRICKY | st.binary(max_size=200)), max_size=4), size=st.integers(1, 90))
@example(parts=[("file", b"")], size=1)
@example(parts=[("file", f"\r\n--{BOUNDARY[:-1]}".encode() * 3)], size=7)
async def test_parts_come_whole_in_any_pieces(parts: list[tuple[str, bytes]], size: int) -> None:
    assert await read(body_of(parts), size) == parts


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=300), size=st.integers(1, 60))
async def test_what_is_no_multipart_body_is_refused(body: bytes, size: int) -> None:
    try:
        await read(body, size)
    except InvalidRequest:
        return
    assert BOUNDARY.encode() in body


@pytest.mark.parametrize(
    "body",
    [
        body_of([("a", b"x")])[:-4],
        body_of([("a", b"x")])[:40],
        f"--{BOUNDARY}\r\nContent-Type: a/b\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode(),
        f"--{BOUNDARY}\r\nContent-Disposition: attachment; name=a\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode(),
        f"--{BOUNDARY}\r\nContent-Disposition: form-data\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode(),
        body_of([("a", b"")] * (MAX_PARTS + 1)),
        b"",
    ],
)
async def test_a_faulty_body_is_refused(body: bytes) -> None:
    for size in (1, 33, 1_000_000):
        with pytest.raises(InvalidRequest):
            await read(body, size)


async def test_bounds_are_told_before_and_while_the_body_comes() -> None:
    with pytest.raises(RequestTooLarge):
        await read(body_of([("a", b"x" * 500)]), 10, max_bytes=300)
    call = FakeCall([b"x"], **{"content-length": "301"})
    with pytest.raises(RequestTooLarge):
        await anext(read_parts(call, max_bytes=300))  # type: ignore[arg-type]
    assert call.asked == 0
    with pytest.raises(UnsupportedMediaType):
        await read(b"", 1, **{"content-encoding": "gzip"})
    for declared in (
        "multipart/form-data",
        "multipart/form-data; boundary=",
        f"multipart/form-data; boundary={'x' * 300}",
    ):
        with pytest.raises(InvalidRequest):
            await read(b"", 1, **{"content-type": declared})


async def test_a_caller_who_hangs_up_is_known_as_gone() -> None:
    call = FakeCall([body_of([("a", b"x" * 100)])[:80]])
    call._messages[1] = {"type": "http.disconnect"}
    with pytest.raises(ClientGone):
        async for _ in read_parts(call, max_bytes=1_000):  # type: ignore[arg-type]
            pass


@given(st.text(st.sampled_from("bytes=-,0123456789 x\u0660"), max_size=14))
@example("bytes=0-0")
@example("bytes=-5")
@example("bytes=5-2")
def test_a_range_is_read_as_one_or_not_at_all(header: str) -> None:
    found = read_range({"range": header})
    if found is None:
        return
    assert header.replace(" ", "").startswith("bytes=") and header.isascii() and "," not in header
    assert found.offset >= 0 and found.last_bytes >= 0 and (found.length is None or found.length > 0)
    assert not (found.last_bytes and (found.offset or found.length))


def test_a_range_holds_only_for_the_bytes_that_it_was_meant_for() -> None:
    headers = {"range": "bytes=1-2", "if-range": '"tag"'}
    assert read_range(headers, '"tag"') == ByteRange(offset=1, length=2)
    assert read_range(headers, '"other"') is None and read_range(headers) is None


@pytest.mark.parametrize(
    ("header", "known"),
    [('"t"', True), ('W/"t"', True), ('"a", "t"', True), ("*", True), ('"a"', False), ("t", False), ("", False)],
)
def test_conditions(header: str, known: bool) -> None:
    assert is_known({"if-none-match": header}, '"t"') is known


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_name_breaks_out_of_no_header(name: str) -> None:
    header = disposition(name)
    header.encode("ascii")
    assert header.startswith('attachment; filename="') and header.count('"') == 2
    assert not any(ord(each) < 32 or ord(each) == 127 for each in header)
