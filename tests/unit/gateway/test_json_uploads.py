"""JSON bodies with one long string: whatever the pieces that they arrive in, they are read as a whole reading would."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.gateway.errors import InvalidJson, InvalidRequest, RequestTooLarge
from services.gateway.operation.body import ClientGone
from services.gateway.operation.json_upload import MAX_SMALL_BYTES, JsonUpload


class FakeCall:
    def __init__(self, pieces: list[bytes], **headers: str) -> None:
        self.headers = {"content-type": "application/json"} | headers
        self._messages = [{"type": "http.request", "body": each, "more_body": True} for each in pieces]
        self._messages.append({"type": "http.request", "body": b"", "more_body": False})
        self.asked = 0

    async def receive(self) -> Any:
        self.asked += 1
        return self._messages.pop(0)


async def read(body: bytes, size: int, *, max_bytes: int = 10_000_000, **headers: str) -> tuple[Any, bytes, bool]:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    async with JsonUpload(FakeCall(pieces, **headers), long="content", max_bytes=max_bytes) as upload:  # type: ignore[arg-type]
        document = await upload.read()
        return document, upload.spool.read(), upload.found


TEXT = st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('\\"\n\t\x00é😀{}[]:,u')))
SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**50), 2**50), st.text(st.characters(codec="ascii"), max_size=5)
)
OTHER = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)


@settings(max_examples=400, deadline=None)
@example(content="\\ud83d\\😀abc", others={}, size=3, ascii_only=True)
@example(content="😀" * 40, others={"content ": "content"}, size=7, ascii_only=True)
@example(content='\\"' * 30, others={"a": {"content": "inner"}}, size=1, ascii_only=False)
@given(
    content=TEXT,
    others=st.dictionaries(TEXT.filter(lambda name: name != "content" and "\x00" not in name), OTHER, max_size=4),
    size=st.integers(1, 64),
    ascii_only=st.booleans(),
)
async def test_a_body_in_pieces_reads_as_a_whole_one(
    content: str, others: dict[str, Any], size: int, ascii_only: bool
) -> None:
    if "\x00" in json.dumps(others, ensure_ascii=False) or "\\u0000" in json.dumps(others):
        return
    members = [*others.items()]
    members.insert(len(members) // 2, ("content", content))
    body = json.dumps(dict(members), ensure_ascii=ascii_only).encode()
    document, text, found = await read(body, size)
    assert found and text == content.encode()
    assert document == dict(members) | {"content": ""}


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=60) | st.text('{}[]",:\\ab01', max_size=60).map(str.encode), size=st.integers(1, 9))
async def test_what_is_no_json_is_refused_and_what_is_passes(body: bytes, size: int) -> None:
    try:
        expected = json.loads(body)
    except (ValueError, RecursionError):
        expected = None
    try:
        document, _, found = await read(body, size)
    except (InvalidJson, InvalidRequest):
        return
    assert expected is not None or body.strip() == b"null"
    if not found:
        assert document == expected


async def test_the_name_of_the_string_may_be_escaped() -> None:
    assert (await read(b'{"c\\u006fntent":"x"}', 4))[1] == b"x"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b'{"content":"x","content":"y"}', InvalidJson),
        (b'{"content":"x', InvalidJson),
        (b'{"content":"\\ud800"}', InvalidJson),
        (b'{"content":"\n"}', InvalidJson),
        (b'{"content":"\xff"}', InvalidJson),
        (b'{"content":"x"} tail', InvalidJson),
        (b'{"content":"x"', InvalidJson),
        (b"", InvalidJson),
        (b'{"a":"' + b"x" * MAX_SMALL_BYTES + b'"}', RequestTooLarge),
        (b'{"content":"' + b"x" * 11 + b'"}', RequestTooLarge),
    ],
)
async def test_a_faulty_body_is_refused(body: bytes, fault: type[Exception]) -> None:
    for size in (1, 5, 100_000):
        with pytest.raises(fault):
            await read(body, size, max_bytes=10)


async def test_a_length_over_the_bound_is_told_before_a_byte_is_read() -> None:
    call = FakeCall([b"{}"], **{"content-length": str(10 * 6 + MAX_SMALL_BYTES + 1)})
    async with JsonUpload(call, long="content", max_bytes=10) as upload:  # type: ignore[arg-type]
        with pytest.raises(RequestTooLarge):
            await upload.read()
    assert call.asked == 0


async def test_a_caller_who_hangs_up_leaves_nothing() -> None:
    call = FakeCall([b'{"content":"x'])
    call._messages[1] = {"type": "http.disconnect"}
    async with JsonUpload(call, long="content", max_bytes=10) as upload:  # type: ignore[arg-type]
        with pytest.raises(ClientGone):
            await upload.read()
