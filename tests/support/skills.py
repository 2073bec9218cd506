"""Packages of skills for tests."""

from __future__ import annotations

import io
import zipfile


def manifest(name: str = "greeter", description: str = "Says hello.", body: str = "Say hello.") -> bytes:
    """A SKILL.md."""
    return f"---\nname: {name}\ndescription: {description}\n---\n\n{body}\n".encode()


def package(name: str = "greeter", *, description: str = "Says hello.", body: str = "Say hello.") -> dict[str, bytes]:
    """The files of a skill, with its folder in their names."""
    return {
        f"{name}/SKILL.md": manifest(name, description, body),
        f"{name}/scripts/hello.sh": f"#!/bin/sh\necho hello from {name}\n".encode(),
    }


def zipped(files: dict[str, bytes]) -> bytes:
    """An archive of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def as_form(files: dict[str, bytes], part: str = "files[]") -> list[tuple[str, tuple[str, bytes]]]:
    """The files as parts of a multipart body."""
    return [(part, (name, data)) for name, data in files.items()]
