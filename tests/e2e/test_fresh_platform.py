"""Proves of a platform that has just been started and used: its files are private, and its logs have no complaint."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.testing import await_until
from tests.e2e.test_deletion import call
from tests.support.platform import Platform, running_platform

COMMAND = "mkdir made; echo x > made/file; seq 100000"


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Platform, str]]:
    """A platform of its own on which one session has run tools, with the session's id."""
    before = os.umask(0o022)
    try:
        with running_platform(tmp_path_factory.mktemp("fresh") / "data") as platform:
            tools = [{"type": "agent_toolset_20260401"}]
            agent = call(platform, "POST", "/v1/agents", {"name": "a", "model": "demo", "system": "s", "tools": tools})
            session = call(platform, "POST", "/v1/sessions", {"agent": agent["id"]})["id"]
            text = f"TOOL:bash:{json.dumps({'command': COMMAND})}"
            call(platform, "POST", f"/v1/sessions/{session}/messages", {"content": text})
            await_until(lambda: _left(platform, session), timeout=30)
            await_until(lambda: call(platform, "GET", f"/v1/sessions/{session}")["status"] == "idle", timeout=30)
            yield platform, session
    finally:
        os.umask(before)


def test_whatever_the_platform_writes_is_private(used: tuple[Platform, str]) -> None:
    platform, session = used
    workspace = platform.data_dir / "sandboxes" / session / "workspace"
    looked_at, wide = 0, []
    for folder, folders, files in os.walk(platform.data_dir):
        if Path(folder) == workspace:
            # What tools make there has the modes that they choose.
            folders.clear()
            continue
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            mode = os.lstat(path).st_mode
            looked_at += 1
            if (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and mode & 0o077:
                wide.append(f"{oct(stat.S_IMODE(mode))} {path}")
    assert looked_at > 100
    assert wide == []


def test_files_of_tools_have_ordinary_modes(used: tuple[Platform, str]) -> None:
    platform, session = used
    made = _left(platform, session)[0]
    assert stat.S_IMODE(made.stat().st_mode) == 0o644
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o755


def test_a_start_in_order_logs_no_warning(used: tuple[Platform, str]) -> None:
    platform, _ = used
    lines = [line for line in platform.logs().splitlines() if line]
    levels = [json.loads(line)["level"] if line.startswith("{") else "not structured" for line in lines]
    assert [line for line, level in zip(lines, levels, strict=True) if level not in ("info", "debug")] == []


def _left(platform: Platform, session: str) -> list[Path]:
    return list((platform.data_dir / "sandboxes" / session / "workspace").rglob("made/file"))
