"""Proves what the data folder promises: one holder, private secrets, bounded logs, short socket paths."""

import json
import os
from pathlib import Path

import pytest

from cli.child import _plain
from cli.data_folder import DataFolder
from cli.errors import CannotStart


def test_a_second_holder_is_refused_with_the_first_one_s_pid(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path / "data"), DataFolder(tmp_path / "data")
    first.take()
    assert second.holder() == str(os.getpid())
    with pytest.raises(CannotStart, match=f"pid {os.getpid()}"):
        second.take()
    second.release()
    assert second.holder() == str(os.getpid())
    first.release()
    assert second.holder() is None


def test_a_full_log_is_set_aside_and_its_writer_goes_on(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.take()
    log = folder.log("sessions")
    with open(log, "ab", buffering=0) as writer:
        for number in range(5):
            writer.write(b"%d" % number * 100)
            folder.rotate_log("sessions", limit_bytes=50)
        writer.write(b"after")
    folder.release()
    assert log.read_bytes() == b"after"
    kept = sorted(path.name for path in log.parent.iterdir())
    assert kept == ["sessions.log", "sessions.log.1", "sessions.log.2", "sessions.log.3"]
    assert (log.parent / "sessions.log.1").read_bytes() == b"4" * 100


def test_secrets_that_others_could_read_are_closed(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.take()
    folder.make_secrets()
    first = folder.secret_key.read_text()
    folder.secret_key.chmod(0o644)
    folder.make_secrets()
    folder.release()
    assert folder.secret_key.read_text() == first and len(first) > 40
    assert folder.secret_key.stat().st_mode & 0o777 == 0o600


def test_a_run_folder_of_someone_else_is_refused(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "run").mkdir(mode=0o777)
    (tmp_path / "data" / "run").chmod(0o777)
    with pytest.raises(CannotStart, match="private folder"):
        folder.take()
    folder.release()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"event": "could not start", "error": "no key"}', "could not start: no key"),
        ('{"level": "info"}', '{"level": "info"}'),
        ("Traceback", "Traceback"),
        ("[1]", "[1]"),
    ],
)
def test_a_log_line_becomes_a_sentence(line: str, expected: str) -> None:
    assert _plain(line) == expected


def test_what_the_key_began_with_stays_whatever_versions_come(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.make_secrets()
    first = folder.first_secret()
    assert first and first == folder.secret_key.read_bytes().strip()
    versions = [{"secret": first.decode()}, {"secret": "another"}]
    folder.secret_key.write_text(json.dumps({"format": "managed-agents keyfile 1", "versions": versions}))
    assert folder.first_secret() == first
