"""Proves that YAML means what it looks like, that every value has its line, and that hostile files are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.rehearse.faults import UnusableDomain
from cli.rehearse.yaml_files import MAX_BYTES, parse_yaml, read_yaml


def _data(text: str) -> object:
    return parse_yaml("a.yaml", text.encode()).data


@pytest.mark.parametrize("word", ["no", "yes", "on", "off", "2026-12-01", "007", "0x1F", "1_000", "12:30", ".5", "NaN"])
def test_what_other_readers_turn_into_something_else_stays_a_text(word: str) -> None:
    assert _data(f"a: {word}") == {"a": word}


@pytest.mark.parametrize(
    ("word", "value"),
    [("true", True), ("null", None), ("~", None), ("", None), ("12", 12), ("-3", -3), ("1.5", 1.5), ("1e3", 1000.0)],
)
def test_plain_values_are_what_they_are(word: str, value: object) -> None:
    assert _data(f"a: {word}") == {"a": value}


def test_names_of_fields_are_texts() -> None:
    assert _data("{12: a, true: b, on: c}") == {"12": "a", "true": "b", "on": "c"}


def test_a_quoted_number_is_a_text() -> None:
    assert _data('a: "12"') == {"a": "12"}


def test_every_value_has_its_line() -> None:
    file = parse_yaml("a.yaml", b"a:\n  b: 1\n  c:\n    - x\n    - y: 2\n")
    assert file.lines[("a", "b")] == 2
    assert file.lines[("a", "c", 1, "y")] == 5
    assert file.fault(("a", "c", 1, "y", "deeper"), "x").line == 5
    assert file.fault(("gone",), "x").line == 1


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, '"a" stands twice; it stood in line 1'),
        ("a: &x [1]\nb: *x\n", 1, "anchors and aliases"),
        ("a: !!python/object:os.system x\n", 1, "tags"),
        ("a: !own x\n", 1, "tags"),
        ("a: 1\nb: [1\n", 3, "is no YAML"),
        ("a: 1\n\tb: 2\n", 2, "is no YAML"),
        ("a: 1\n---\nb: 2\n", 2, "is no YAML"),
        ("", 1, "is empty"),
        ("# nothing\n", 1, "is empty"),
        ("a: 1e999\n", 1, "is too large"),
        ("? [1]\n: 2\n", 1, "must be a text"),
        (f"a: {'[' * 40}{']' * 40}\n", 1, "is nested deeper"),
        (f"a: {'[' * 600}{']' * 600}\n", 1, "is nested deeper"),
        ("a: \x00\n", 1, "is no YAML"),
    ],
)
def test_what_is_refused_is_told_with_its_line(text: str, line: int, told: str) -> None:
    with pytest.raises(UnusableDomain) as raised:
        _data(text)
    assert any(fault.line == line and told in fault.told for fault in raised.value.faults), raised.value


def test_other_encodings_are_refused_with_the_line() -> None:
    with pytest.raises(UnusableDomain, match=r"^a\.yaml:2: is no UTF-8"):
        parse_yaml("a.yaml", "a: 1\nb: ü".encode("latin-1"))


def test_a_file_has_a_largest_size(tmp_path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"a" * (MAX_BYTES + 1))
    with pytest.raises(UnusableDomain, match="larger than"):
        read_yaml(tmp_path, "a.yaml")


@given(st.text(max_size=60))
def test_any_text_is_data_or_a_fault_with_a_line(text: str) -> None:
    try:
        parse_yaml("a.yaml", text.encode("utf-8", "replace"))
    except UnusableDomain as unusable:
        assert unusable.faults and all(fault.line >= 1 for fault in unusable.faults)
