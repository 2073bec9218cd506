"""Words are replaced in a stream as in the whole, however the stream is cut."""

import base64
import json
import re
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.runner.secrets import Scrubber
from services.worker.sandbox.replacing import Replacer
from services.worker.sandbox.spellings import base64_cores, spellings
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


@given(st.dictionaries(LETTERS | st.just(b"a" * 17 + b"b"), st.just(b"<>"), max_size=4), st.text("ab", max_size=60))
def test_the_first_place_counts_and_there_the_longest_word(words: dict[bytes, bytes], text: str) -> None:
    expression = b"|".join(sorted(words, key=len, reverse=True))
    data = text.encode()
    assert Replacer(words).replace(data) == (re.sub(expression, b"<>", data) if words else data)


@pytest.mark.parametrize("secret", ["a" * 30_000 + "b" * 30_000, "ü\n" * 20_000, "ab/+" * 16_000])
def test_a_secret_of_any_length_is_known_and_found_in_no_time(secret: str) -> None:
    started = time.process_time()
    scrubber = Scrubber({secret: "LONG", "another-secret": "OTHER"})
    scrubber.add({"a-third-secret": "THIRD"})
    whole = f"before\n{secret}\nafter {base64.encodebytes(secret.encode()).decode()} another-secret"
    told = scrubber.text(whole)
    assert told.startswith("before\n[secret LONG removed]") and told.endswith("[secret OTHER removed]")
    # What stands around it may be left of the characters at both ends of a base64 text.
    assert len(told.replace("[secret LONG removed]", "").replace("\n", "")) < 60
    stream = Replacer({word: b"#" for word in spellings(secret)}).stream()
    shown = stream.feed(b"a" * 65_536) + stream.feed(secret.encode()) + stream.finish()
    assert secret.encode()[-5_000:] not in shown
    assert time.process_time() - started < 2


@given(st.binary(max_size=9), st.sampled_from(["\n", "\r\n"]), st.integers(1, 90), st.integers(0, 3))
def test_base64_in_lines_of_any_length_is_found(before: bytes, end: str, width: int, more: int) -> None:
    whole = base64.b64encode(before + (SECRET.encode() + b"...") * (more + 1)).decode()
    wrapped = end.join(whole[place : place + width] for place in range(0, len(whole), width))
    told = Scrubber({SECRET: "TOKEN"}).text(f"a{end}{wrapped}{end}b")
    assert told.count("[secret TOKEN removed]") >= more + 1
    assert told.startswith(f"a{end}") and told.endswith(f"{end}b")
    assert all(core not in told.replace(end, "") for core in map(bytes.decode, base64_cores(SECRET.encode())))


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
