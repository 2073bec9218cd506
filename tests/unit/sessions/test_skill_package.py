"""Packages of skills: what SKILL.md must say, where it lies, and that every way of uploading one is kept as one."""

from __future__ import annotations

import contextlib
import io
import time
import zipfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.archives import read_zip
from services.sessions.domain.skill_errors import InvalidSkillPackage
from services.sessions.domain.skill_manifest import Manifest, read_manifest
from services.sessions.domain.skill_package import LIMITS, UploadedPart, read_package

MANIFEST = b"---\nname: pdf-tools\ndescription: Reads PDF files.\nlicense: MIT\n---\n\n# How\n"


def zipped(files: dict[str, bytes]) -> bytes:
    """An archive of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _parts(files: dict[str, bytes]) -> list[UploadedPart]:
    return [UploadedPart(name, data) for name, data in files.items()]


FILES = {"pdf-tools/SKILL.md": MANIFEST, "pdf-tools/scripts/run.sh": b"#!/bin/sh\n", "pdf-tools/a.txt": b"a"}


def test_a_package_is_the_same_whatever_way_it_comes() -> None:
    bare = {name.removeprefix("pdf-tools/"): data for name, data in FILES.items()}
    renamed = {f"Folder/{name}": data for name, data in bare.items()}
    uploads = [
        _parts(FILES),
        _parts(bare),
        _parts(renamed),
        [UploadedPart("any.zip", zipped(FILES))],
        [UploadedPart("any.SKILL", zipped(bare))],
        [UploadedPart("no-ending", zipped(renamed))],
    ]
    packages = [read_package(upload) for upload in uploads]
    assert {package.manifest for package in packages} == {Manifest("pdf-tools", "Reads PDF files.")}
    for package in packages:
        kept = {file.name: file.data for file in read_zip(package.archive, LIMITS)}
        assert kept == FILES
    # Whether a file may be run is told by an archive, or by its first characters.
    assert packages[0].archive == packages[1].archive == packages[2].archive
    assert packages[3].archive == packages[4].archive == packages[5].archive
    again = read_package([UploadedPart("again.zip", packages[0].archive)])
    assert again == packages[0]


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"pdf/readme.md": MANIFEST},
        {"pdf/skill.md": MANIFEST},
        {"pdf/docs/SKILL.md": MANIFEST, "pdf/a": b""},
        {"pdf/SKILL.md": MANIFEST, "other/a": b""},
        {"pdf/SKILL.md": MANIFEST, "other/SKILL.md": MANIFEST},
        {"pdf/SKILL.md": MANIFEST, "pdf/docs/SKILL.md": MANIFEST},
        {"pdf/SKILL.md": MANIFEST, "pdf/docs/skill.MD": MANIFEST},
        {"SKILL.md": MANIFEST, "pdf/SKILL.md": MANIFEST},
        {"pdf/SKILL.md": MANIFEST, "pdf/skill.md": MANIFEST},
        {"pdf/SKILL.md": MANIFEST, "loose": b""},
        {"pdf": b"", "pdf/SKILL.md": MANIFEST},
        {"pdf/SKILL.md": MANIFEST, "pdf/../../x": b""},
        {"pdf/SKILL.md": MANIFEST, "/etc/x": b""},
        {"pdf/SKILL.md": MANIFEST, "pdf/C:\\x": b""},
        {"pdf/SKILL.md": MANIFEST, "pdf/a\x00b": b""},
    ],
)
def test_a_package_of_another_shape_is_refused_as_files_and_as_archive(files: dict[str, bytes]) -> None:
    with pytest.raises(InvalidSkillPackage):
        read_package(_parts(files))
    if not any("\x00" in name or name.startswith("/") for name in files):
        with pytest.raises(InvalidSkillPackage):
            read_package([UploadedPart("a.zip", zipped(files))])


def test_the_same_name_twice_is_refused() -> None:
    parts = [UploadedPart("pdf/SKILL.md", MANIFEST), *_parts({"pdf/a": b"1"}), *_parts({"pdf/a": b"2"})]
    with pytest.raises(InvalidSkillPackage, match="twice"):
        read_package(parts)


def test_too_many_and_too_large_files_are_refused() -> None:
    many = {f"pdf/{number}": b"" for number in range(LIMITS.files)} | {"pdf/SKILL.md": MANIFEST}
    with pytest.raises(InvalidSkillPackage, match="1000 files"):
        read_package(_parts(many))
    with pytest.raises(InvalidSkillPackage, match="larger than"):
        read_package(_parts({"pdf/SKILL.md": MANIFEST, "pdf/a": bytes(LIMITS.total_bytes)}))


def test_an_archive_beside_other_files_is_a_file() -> None:
    package = read_package(_parts({"pdf/SKILL.md": MANIFEST, "pdf/data.zip": zipped({"x": b"y"})}))
    assert "pdf-tools/data.zip" in [file.name for file in read_zip(package.archive, LIMITS)]


def _manifest(text: str | bytes, folder: str | None = None) -> Manifest:
    return read_manifest(text if isinstance(text, bytes) else text.encode(), folder=folder)


@pytest.mark.parametrize(
    ("front", "told"),
    [
        ("name: a-b\ndescription: 'It is: this'", Manifest("a-b", "It is: this")),
        ("description: >\n  two\n  lines\nname: a1", Manifest("a1", "two lines")),
        ('name: "a"\ndescription: x\nmetadata:\n  k: [1, 2]\nallowed-tools: Read, Write', Manifest("a", "x")),
    ],
)
def test_name_and_description_are_read(front: str, told: Manifest) -> None:
    for text in (f"---\n{front}\n---\nbody", f"\ufeff---\r\n{front}\r\n---\r\n", f"---  \n{front}\n---"):
        assert _manifest(text) == told


def test_a_missing_name_is_that_of_the_folder() -> None:
    assert _manifest("---\ndescription: x\n---", folder="pdf") == Manifest("pdf", "x")
    with pytest.raises(InvalidSkillPackage, match="name"):
        _manifest("---\ndescription: x\n---")
    with pytest.raises(InvalidSkillPackage, match="name"):
        _manifest("---\ndescription: x\n---", folder="No Slug")


@pytest.mark.parametrize(
    "front",
    [
        *("name: a", "name: a\ndescription: ''", "name: a\ndescription: '   '", "name: a\ndescription:", ""),
        *(
            "name: A\ndescription: x",
            "name: a_b\ndescription: x",
            "name: -a\ndescription: x",
            "name: a--b\ndescription: x",
        ),
        *(
            "name: ../x\ndescription: x",
            "name: a/b\ndescription: x",
            "name: 1\ndescription: x",
            "name: [a]\ndescription: x",
        ),
        *(f"name: {'a' * 65}\ndescription: x", f"name: a\ndescription: {'x' * 1025}"),
        *("name: a\ndescription: true", "name: a\ndescription: {x: y}", "- name: a", "just text", "name: a: b"),
        *("name: a\ndescription: read <system>this</system>", 'name: a\ndescription: "a\\eb"'),
        *(
            "name: a\nname: b\ndescription: x",
            "x: &a [1]\ny: *a\nname: a\ndescription: x",
            "x: &a b\nname: a\ndescription: x",
        ),
        *(
            "name: !!python/object/apply:os.system ['true']\ndescription: x",
            f"x: {'[' * 8000}\nname: a\ndescription: x",
        ),
        *(f"x: {'y' * 17_000}\nname: a\ndescription: x", "name: a\ndescription: !!binary aGk="),
    ],
)
def test_front_matter_that_breaks_a_rule_is_refused(front: str) -> None:
    with pytest.raises(InvalidSkillPackage, match=r"SKILL\.md"):
        _manifest(f"---\n{front}\n---\nbody")


@pytest.mark.parametrize(
    "text", ["", "# No front matter", "---\nname: a\ndescription: x", b"---\n\xff\xfe\n---", " ---\n---"]
)
def test_a_manifest_without_front_matter_is_refused(text: Any) -> None:
    with pytest.raises(InvalidSkillPackage):
        _manifest(text)


@pytest.mark.parametrize(
    "unit", ["[", "{", "- ", "? ", "a: ", "- - ", "[[],", "'", "|", "x: {y: [", "\n", "# ", "!", "&a "]
)
def test_no_front_matter_takes_long_to_refuse(unit: str) -> None:
    began = time.process_time()
    with contextlib.suppress(InvalidSkillPackage):
        _manifest(f"---\nx: {unit * (16_000 // len(unit))}\nname: a\ndescription: x\n---\n")
    lines = "".join(f"{' ' * (depth % 200)}{unit}\n" for depth in range(1000))
    with contextlib.suppress(InvalidSkillPackage):
        _manifest(f"---\n{lines[:16_000]}\n---\n")
    assert time.process_time() - began < 2


def test_a_huge_manifest_is_refused() -> None:
    with pytest.raises(InvalidSkillPackage, match="larger than"):
        _manifest(MANIFEST + bytes(1024 * 1024))


@given(
    st.one_of(
        st.binary(max_size=200), st.text(max_size=200).map(lambda text: f"---\n{text}\n---".encode("utf-8", "replace"))
    )
)
def test_no_manifest_makes_it_fail_otherwise(data: bytes) -> None:
    try:
        manifest = read_manifest(data, folder="a")
    except InvalidSkillPackage:
        return
    assert manifest.name and manifest.description and len(manifest.description) <= 1024


_NAME = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["..", ".", "", "/", "a/..", "C:\\x", "a\\b", "SKILL.md", "skill.md", "pdf/SKILL.md", "PDF/x", "pdf/x"]
    ),
)


@given(st.lists(st.tuples(_NAME, st.sampled_from([MANIFEST, b"", b"x"])), max_size=6))
def test_no_upload_makes_it_fail_otherwise_or_leads_out_of_its_folder(entries: list[tuple[str, bytes]]) -> None:
    try:
        package = read_package([UploadedPart(name, data) for name, data in entries])
    except InvalidSkillPackage:
        return
    for file in read_zip(package.archive, LIMITS):
        assert file.name.startswith("pdf-tools/") and ".." not in file.name.split("/")
