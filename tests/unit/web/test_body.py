"""Bodies are read within bounds, whatever way they are packed, and decoded as what they are."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.runner.web.body import BoundedBody, decode, read_media_type
from services.worker.runner.web.policy import WebRefused
from services.worker.runner.web.tools import capped


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


_PACKERS = {None: bytes, "identity": bytes, "gzip": gzip.compress, "X-GZIP": gzip.compress, "deflate": zlib.compress}


@given(st.sampled_from(list(_PACKERS)), st.binary(max_size=5000), st.integers(1, 700))
def test_a_body_is_unpacked_whatever_its_pieces(encoding: str | None, data: bytes, piece: int) -> None:
    packed = _PACKERS[encoding](data)
    body = BoundedBody(encoding, 100_000)
    for at in range(0, len(packed), piece):
        body.feed(packed[at : at + piece])
    assert body.finish() == data


def test_deflate_without_its_header_is_taken() -> None:
    body = BoundedBody("deflate", 100_000)
    body.feed(_raw_deflate(b"plain words" * 10))
    assert body.finish() == b"plain words" * 10


@pytest.mark.parametrize("encoding", ["gzip", "deflate", None])
def test_more_than_the_limit_is_refused_as_it_comes(encoding: str | None) -> None:
    packed = _PACKERS[encoding](bytes(50_000_000))
    body = BoundedBody(encoding, 1_000_000)
    with pytest.raises(WebRefused, match="larger than 1000000 bytes"):
        for at in range(0, len(packed), 65_536):
            body.feed(packed[at : at + 65_536])
    assert len(body._data) <= 1_000_001


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "rot13"])
def test_packing_that_was_not_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(WebRefused, match="not asked for"):
        BoundedBody(encoding, 1000)


def test_what_can_not_be_unpacked_or_is_cut_off_is_refused() -> None:
    with pytest.raises(WebRefused, match="unpacked"):
        BoundedBody("gzip", 1000).feed(b"no gzip at all")
    body = BoundedBody("gzip", 1000)
    body.feed(gzip.compress(b"abc" * 100)[:-6])
    with pytest.raises(WebRefused, match="before it is complete"):
        body.finish()


@pytest.mark.parametrize(
    ("header", "is_text"),
    [
        *((each, True) for each in ("text/plain", "text/html; charset=utf-8", "application/json", "image/svg+xml")),
        *((each, True) for each in ("TEXT/CSV", "application/feed+json", "application/xhtml+xml")),
        *(
            (each, False)
            for each in ("image/png", "application/pdf", "application/octet-stream", "video/mp4", "", None)
        ),
        *((each, False) for each in ("nonsense", "text", "a/b/c", "application/zip")),
    ],
)
def test_only_text_like_types_are_decoded(header: str | None, is_text: bool) -> None:
    assert read_media_type(header).is_text is is_text


@pytest.mark.parametrize(
    ("header", "data", "text"),
    [
        ("text/plain", "ä".encode(), "ä"),
        ("text/plain; charset=iso-8859-1", b"\xe4", "ä"),
        ('text/plain; charset="windows-1252"', b"\x80", "€"),
        ("text/html", b'<meta charset="iso-8859-1">\xe4', '<meta charset="iso-8859-1">ä'),
        ("text/plain; charset=base64", b"aGk=", "aGk="),
        ("text/plain; charset=idna", b"xn--a", "xn--a"),
        ("text/plain; charset=no-such", "é".encode(), "é"),
        ("text/plain", b"\xff", "\ufffd"),
        ("text/plain", b"\xef\xbb\xbfhi", "hi"),
    ],
)
def test_text_is_decoded_as_it_says_or_as_well_as_can_be(header: str, data: bytes, text: str) -> None:
    assert decode(data, read_media_type(header)) == text


@given(st.text(max_size=400), st.integers(1, 100))
def test_a_text_is_cut_to_its_tokens_and_says_so(text: str, tokens: int) -> None:
    result = capped(text, tokens)
    if result != text:
        kept, _, note = result.partition("\n\n[cut: ")
        if "[cut: " not in text:
            assert text.startswith(kept) and len(kept.encode()) <= 3 * tokens
            assert note.startswith(f"the first {len(kept)} of {len(text)} characters")
    else:
        assert len(text.encode("utf-8", "replace")) <= 3 * tokens


def test_without_a_cap_all_of_it_is_kept() -> None:
    assert capped("a" * 100_000, None) == "a" * 100_000
