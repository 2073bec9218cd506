"""Names, media types, previews, paths and lives of files, whatever comes."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.sessions.domain import file as rules
from services.sessions.domain.file_errors import InvalidArtifactPath, InvalidFile

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ODD = st.text(st.one_of(st.characters(), st.sampled_from("./\\ \u202e\u2066\u200b\u2028\x00\x1b\ud800:%\"'")))


@given(given_name=ODD, media_type=st.sampled_from(["", "text/plain", "image/png", "x/y"]))
@example(given_name="a" * 5000 + ".json", media_type="")
@example(given_name="é" * 400, media_type="")
def test_any_name_is_made_harmless(given_name: str, media_type: str) -> None:
    name = rules.safe_name(given_name, media_type)
    assert name and len(name.encode()) <= 255 and name == name.strip()
    assert "/" not in name and "\\" not in name and name.strip(". ")
    assert not any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in name)
    assert rules.safe_name(name, media_type) == name


@pytest.mark.parametrize(
    ("given_name", "media_type", "name"),
    [
        ("notes.txt", "", "notes.txt"),
        ("a/b/c.txt", "", "c.txt"),
        ("C:\\x\\y.txt", "", "y.txt"),
        ("", "text/plain", "unnamed.txt"),
        ("...", "image/png", "unnamed.png"),
        ("a/", "x/unknown", "unnamed"),
        ("e\u0301.txt", "", "\u00e9.txt"),
        (".env", "", ".env"),
        (" a\t b.txt ", "", "a b.txt"),
    ],
)
def test_names(given_name: str, media_type: str, name: str) -> None:
    assert rules.safe_name(given_name, media_type) == name


def test_a_long_name_keeps_its_extension() -> None:
    assert rules.safe_name("x" * 300 + ".json", "") == "x" * 250 + ".json"


@pytest.mark.parametrize(
    ("given_type", "name", "media_type"),
    [
        ("", "a.md", "text/markdown"),
        ("", "a.YAML", "application/yaml"),
        ("", "a.svg", "image/svg+xml"),
        ("", "a.unknown", "application/octet-stream"),
        ("", "a", "application/octet-stream"),
        ("Text/HTML; charset=x", "a.txt", "text/html"),
    ],
)
def test_media_types(given_type: str, name: str, media_type: str) -> None:
    assert rules.read_media_type(given_type, name) == media_type


@given(st.text())
def test_a_media_type_is_one_or_is_refused(given_type: str) -> None:
    try:
        found = rules.read_media_type(given_type, "x")
    except InvalidFile as refused:
        assert refused.field == "media_type"
    else:
        assert found.isascii() and found.count("/") == 1 and found == found.lower()


@pytest.mark.parametrize(
    "media_type",
    ["text/plain", "text/markdown", "text/html", "application/json", "application/yaml", "image/svg+xml"],
)
def test_texts_have_a_preview(media_type: str) -> None:
    assert rules.preview_of(b"# hi", 4, media_type) == ("# hi", False)


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"\x89PNG", "image/png"),
        (b"hi", "application/octet-stream"),
        (b"\xff\xfe", "text/plain"),
        (b"a\x00", "text/plain"),
    ],
)
def test_what_is_no_text_has_none(content: bytes, media_type: str) -> None:
    assert rules.preview_of(content, len(content), media_type) == (None, False)


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\ufeff")), more=st.booleans())
@example(text="😀" * 4_000, more=True)
@example(text="a" + "😀" * 5_000, more=False)
def test_a_preview_is_the_beginning_of_the_text(text: str, more: bool) -> None:
    content = (text + ("tail" * 20_000 if more else "")).encode()
    preview, truncated = rules.preview_of(content[: rules.PREVIEW_BYTES], len(content), "text/plain")
    assert preview is not None and content.decode().startswith(preview)
    assert len(preview) <= rules.MAX_PREVIEW_CHARACTERS
    assert truncated == (preview.encode() != content)


@given(ODD)
def test_an_artifact_path_means_one_place(path: str) -> None:
    for candidate in (path, f"/artifacts/{path}"):
        try:
            assert rules.read_artifact_path(candidate) == candidate
        except InvalidArtifactPath as refused:
            assert refused.field == "path"
        else:
            segments = candidate.split("/")
            assert segments[:2] == ["", "artifacts"] and len(segments) > 2
            assert not {"", ".", ".."} & set(segments[2:]) and "\\" not in candidate and "\x00" not in candidate


def test_lives() -> None:
    assert rules.expires_at(0, NOW) is None
    assert rules.expires_at(3_600, NOW) == NOW + timedelta(hours=1)
    assert rules.expires_at(7_776_000, NOW) == NOW + timedelta(days=90)
    for seconds in (1, 3_599, 7_776_001, -1):
        with pytest.raises(InvalidFile):
            rules.expires_at(seconds, NOW)
