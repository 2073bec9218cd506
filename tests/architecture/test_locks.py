"""Both locks are in step: a worker's image installs what programs need, at the versions that the tests ran with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.requirements import needed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(lock: Path) -> dict[str, str]:
    """Each package of a lock with its whole entry: version, conditions, hashes."""
    entries = re.split(r"\n(?=\S)", lock.read_text().strip())
    return {str(canonicalize_name(entry.partition("==")[0].partition("[")[0])): entry for entry in entries}


WHOLE, RUNTIME = pins(ROOT / "requirements.lock"), pins(ROOT / "deploy" / "worker" / "requirements.lock")


def test_what_an_image_installs_was_tested_at_the_same_version() -> None:
    without_markers = {name: re.sub(r" ;[^\\]*", " ", entry) for name, entry in RUNTIME.items()}
    assert without_markers
    for name, entry in without_markers.items():
        assert name in WHOLE, f"{name} is in the image's lock only: make both anew, see CONTRIBUTING.md"
        assert entry.split() == re.sub(r" ;[^\\]*", " ", WHOLE[name]).split(), f"{name} differs between the locks"
        assert "--hash=sha256:" in entry


def test_an_image_installs_all_that_the_programs_need() -> None:
    missing = needed(PROJECT["dependencies"]) - set(RUNTIME)
    assert not missing, "make the image's lock anew, see CONTRIBUTING.md"


def test_an_image_installs_nothing_that_tests_alone_need() -> None:
    here = {name for name, entry in RUNTIME.items() if " ; " not in entry.splitlines()[0]}
    # Some are needed on other systems, or with other versions of Python; they have a condition then.
    assert not here - needed(PROJECT["dependencies"])
    extras = {
        str(canonicalize_name(Requirement(line).name))
        for lines in PROJECT["optional-dependencies"].values()
        for line in lines
    }
    declared = {str(canonicalize_name(Requirement(line).name)) for line in PROJECT["dependencies"]}
    assert not (extras - declared) & set(RUNTIME)
