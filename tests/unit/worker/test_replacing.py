"""Words are replaced in a stream as in the whole, however the stream is cut."""

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.runner.secrets import Scrubber
from services.worker.sandbox.replacing import Replacer
from services.worker.sandbox.spellings import spellings
from services.worker.tools import ToolOutcome

SECRET = 'gh/p+ exa?mple"se\\cret=ü5'
LETTERS = st.text(alphabet="ab", min_size=1, max_size=5).map(str.encode)


def in_pieces(replacer: Replacer, pieces: list[bytes]) -> bytes:
    stream = replacer.stream()
    return b"".join([stream.feed(piece) for piece in pieces] + [stream.finish()])


@given(st.dictionaries(LETTERS, st.just(b"<>"), max_size=4), st.lists(st.binary(max_size=6) | LETTERS, max_size=12))
def test_the_outcome_does_not_depend_on_where_the_stream_is_cut(words: dict[bytes, bytes], pieces: list[bytes]) -> None:
    replacer = Replacer(words)
    whole = b"".join(pieces)
    assert in_pieces(replacer, pieces) == replacer.replace(whole)
    assert in_pieces(replacer, [bytes([byte]) for byte in whole]) == replacer.replace(whole)


@given(st.lists(st.sampled_from([b"placeholder_1", b"placeholder_", b"place", b"holder_12", b"p", b"\n\n", b"x"])))
def test_nothing_is_held_back_that_can_not_become_a_word(pieces: list[bytes]) -> None:
    replacer = Replacer({b"placeholder_1": b"S", b"placeholder_12": b"T"})
    stream, given_back = replacer.stream(), b""
    for piece in pieces:
        given_back += stream.feed(piece)
    assert len(stream.held) < len(b"placeholder_12")
    if pieces and pieces[-1] in (b"\n\n", b"x"):
        assert not stream.held
    assert given_back + stream.finish() == replacer.replace(b"".join(pieces))


@given(st.binary(max_size=9), st.binary(max_size=9))
def test_a_secret_inside_of_other_base64_is_found(before: bytes, after: bytes) -> None:
    words = spellings(SECRET)
    whole = before + SECRET.encode() + after
    for encoded in (base64.b64encode(whole), base64.urlsafe_b64encode(whole), whole.hex().encode()):
        assert any(word in encoded for word in words)


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote(SECRET, safe="").lower(),
        SECRET.encode().hex(),
        "\n".join(base64.encodebytes(b"y" * 50 + SECRET.encode() + b"z" * 90).decode().splitlines()),
        base64.encodebytes(b"y" * 50 + SECRET.encode()).decode().replace("\n", "\r\n"),
    ],
)
def test_no_spelling_gets_through(written: str) -> None:
    scrubbed = Scrubber({SECRET: "TOKEN"}).text(f"before {written} after")
    assert "[secret TOKEN removed]" in scrubbed
    assert scrubbed.startswith("before ") and scrubbed.endswith(" after")
    for word in spellings(SECRET):
        assert word.decode() not in scrubbed.replace("\r", "").replace("\n", "")


def test_all_of_a_result_is_scrubbed() -> None:
    scrubber = Scrubber({"hunter2hunter2": "PASSWORD"})
    outcome = ToolOutcome("is hunter2hunter2", True, {"path": "/x/hunter2hunter2", "file_bytes": 3})
    assert scrubber.outcome(outcome) == ToolOutcome(
        "is [secret PASSWORD removed]", True, {"path": "/x/[secret PASSWORD removed]", "file_bytes": 3}
    )
    untouched = ToolOutcome("nothing here")
    assert scrubber.outcome(untouched) is untouched
    assert scrubber.value({"hunter2hunter2": [1, None, ("hunter2hunter2",)]}) == {
        "[secret PASSWORD removed]": [1, None, ["[secret PASSWORD removed]"]]
    }


def test_old_values_stay_known_and_a_line_of_a_key_is_a_secret() -> None:
    key = "-----BEGIN KEY-----\n" + "A1b2" * 16 + "\n-----END KEY-----"
    scrubber = Scrubber({"first-value": "T"})
    scrubber.add({"second-value": "T", key: "KEY"})
    assert scrubber.text("first-value second-value") == "[secret T removed] [secret T removed]"
    assert "A1b2" not in scrubber.text("   2  " + "A1b2" * 16)


def test_what_is_too_short_to_hide_garbles_nothing() -> None:
    scrubber = Scrubber({"a": "T", "": "U"})
    assert not scrubber and scrubber.text("a banana") == "a banana"
