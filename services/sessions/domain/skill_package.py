"""A skill's package: judged whole, then packed in one way whatever way it came.

It comes as files with a common folder in their names, or as one archive (`.zip`, `.skill`) that holds them. At the root
of the folder lies exactly one SKILL.md. What is kept is an archive of our own with the skill's name as its folder, so
equal packages are equal bytes, and whoever unpacks it meets nothing that was not judged here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kit.archives import ArchiveRefused, Limits, PackedFile, check_names, clean_name, read_zip, write_zip
from services.sessions.domain.skill_errors import InvalidSkillPackage
from services.sessions.domain.skill_manifest import MANIFEST, Manifest, read_manifest

MAX_UPLOAD_BYTES = 30 * 1024 * 1024
LIMITS = Limits(files=1_000, total_bytes=MAX_UPLOAD_BYTES)
ARCHIVE_ENDINGS = (".zip", ".skill")
_ZIP_BEGINS = b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """One file of an upload, as it was called."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class SkillPackage:
    """A sound package."""

    manifest: Manifest
    # The zip archive that is kept.
    archive: bytes


def read_package(parts: Sequence[UploadedPart]) -> SkillPackage:
    """The package of an upload. InvalidSkillPackage names what is wrong with it."""
    try:
        files = _files(parts)
        folder, files = _below_folder(files)
        manifest = _manifest(files, folder)
        named = [PackedFile(clean_name(f"{manifest.name}/{file.name}"), file.data, file.executable) for file in files]
    except ArchiveRefused as refused:
        raise InvalidSkillPackage(str(refused), field="files") from None
    return SkillPackage(manifest, write_zip(named))


def _files(parts: Sequence[UploadedPart]) -> list[PackedFile]:
    if not parts:
        raise InvalidSkillPackage(
            "An upload holds the files of a skill, or one archive (.zip, .skill) with them.", field="files"
        )
    if len(parts) == 1 and _is_archive(parts[0]):
        return read_zip(parts[0].data, LIMITS)
    if len(parts) > LIMITS.files:
        raise ArchiveRefused(f"The upload has more than {LIMITS.files} files.")
    if sum(len(part.data) for part in parts) > LIMITS.total_bytes:
        raise ArchiveRefused(f"The files are larger than {LIMITS.total_bytes} bytes together.")
    files = [PackedFile(clean_name(part.name), part.data, part.data.startswith(b"#!")) for part in parts]
    check_names(file.name for file in files)
    return files


def _is_archive(part: UploadedPart) -> bool:
    return part.name.lower().endswith(ARCHIVE_ENDINGS) or part.data.startswith(_ZIP_BEGINS)


def _below_folder(files: list[PackedFile]) -> tuple[str | None, list[PackedFile]]:
    """The common folder of the files, and their names below it. A package may also come without one."""
    tops = {file.name.partition("/")[0] for file in files}
    if not files or any(file.name == MANIFEST for file in files):
        return None, files
    if len(tops) != 1:
        raise InvalidSkillPackage(
            f"All files of a skill lie in one folder, with {MANIFEST} at its root; these lie in {len(tops)}.",
            field="files",
        )
    folder = tops.pop()
    if any("/" not in file.name for file in files):
        raise _without_manifest()
    return folder, [PackedFile(file.name.partition("/")[2], file.data, file.executable) for file in files]


def _manifest(files: list[PackedFile], folder: str | None) -> Manifest:
    found = [file for file in files if file.name.rpartition("/")[2].casefold() == MANIFEST.casefold()]
    at_root = next((file for file in found if file.name == MANIFEST), None)
    if at_root is None:
        raise _without_manifest()
    if len(found) > 1:
        other = next(file.name for file in found if file is not at_root)
        raise InvalidSkillPackage(
            f"A skill has one {MANIFEST}, at its root; {other[:200]!r} is another.", field="files", entry=other[:200]
        )
    return read_manifest(at_root.data, folder=folder)


def _without_manifest() -> InvalidSkillPackage:
    return InvalidSkillPackage(
        f"The skill has no {MANIFEST} at the root of its folder. The name is spelled exactly so.", field="files"
    )
