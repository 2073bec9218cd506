"""Ids sort and never repeat; times and cursors read back as they were written; nothing else is taken for one."""

import string
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.clock import SystemClock, rfc3339
from kit.ids import is_id, made_at, new_id
from kit.pages import InvalidCursor, decode_cursor, encode_cursor

scopes = st.text(max_size=40)
numbers = st.integers(min_value=-(2**53), max_value=2**53)
positions = st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | numbers | st.text(max_size=40), max_size=4)


def test_ids_are_unique_and_sort_by_their_making():
    made = [new_id("sess") for _ in range(50_000)]
    assert made == sorted(set(made))
    assert all(is_id("sess", each) for each in made[:100])


@pytest.mark.parametrize(
    "value",
    ["", "sess_", None, 7, "sess_" + "0" * 25, "sess_" + "8" + "0" * 25, "sess_" + "0" * 25 + "u", "agent_" + "0" * 26,
     "sess_" + "0" * 26 + "\n", "SESS_" + "0" * 26, "sess_" + "0" * 25 + "٣"],
)  # fmt: skip
def test_what_only_resembles_an_id_is_none(value):
    assert not is_id("sess", value)
    assert is_id("sess", "sess_" + "0" * 26)


@given(st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)), st.integers(-23, 23))
def test_a_time_reads_back_as_the_same_moment(naive, hours):
    moment = naive.replace(tzinfo=timezone(timedelta(hours=hours)))
    text = rfc3339(moment)
    assert len(text) == len("2026-11-29T21:08:47.123456Z")
    assert text.endswith("Z")
    assert datetime.fromisoformat(text) == moment


def test_an_id_tells_when_it_was_made():
    before = time.time()
    assert before - 0.001 <= made_at(new_id("sess")) <= time.time() + 0.001
    assert made_at("sess_" + "0" * 26) == 0.0 and made_at("sess_0000000010" + "Z" * 16) == 0.032


@given(st.text())
def test_what_tells_no_time_is_of_no_time(text):
    assert made_at(text) >= 0.0 and made_at(f"sess_U{text}") == 0.0 and made_at("") == 0.0


def test_a_time_without_zone_is_refused():
    with pytest.raises(ValueError, match="zone"):
        rfc3339(datetime(2026, 11, 29))
    assert SystemClock().now().tzinfo is UTC


@given(scopes, positions)
def test_a_cursor_reads_back(scope, position):
    cursor = encode_cursor(scope, position)
    assert set(cursor) <= set(string.ascii_letters + string.digits + "-_")
    assert decode_cursor(cursor, scope) == position


@given(scopes, scopes, positions)
def test_a_cursor_of_another_query_is_refused(scope, other, position):
    if scope != other:
        with pytest.raises(InvalidCursor):
            decode_cursor(encode_cursor(scope, position), other)


@given(positions, st.data())
def test_a_changed_cursor_is_refused(position, data):
    cursor = encode_cursor("agents", position)
    index = data.draw(st.integers(0, len(cursor) - 1))
    character = data.draw(st.characters(codec="utf-8"))
    changed = cursor[:index] + character + cursor[index + 1 :]
    if changed != cursor:
        with pytest.raises(InvalidCursor):
            decode_cursor(changed, "agents")
    for cut in (cursor[:index], cursor[:index] + cursor[index + 1 :], cursor + "A", cursor + "=", f" {cursor}"):
        with pytest.raises(InvalidCursor):
            decode_cursor(cut, "agents")


@given(st.text(max_size=60))
def test_no_text_of_a_stranger_is_a_cursor(text):
    with pytest.raises(InvalidCursor) as caught:
        decode_cursor(text, "agents")
    assert caught.value.field == "page"
    assert caught.value.reason == "INVALID_CURSOR"


def test_a_huge_cursor_is_refused_unread():
    with pytest.raises(InvalidCursor):
        decode_cursor("A" * 1_000_000, "agents")
