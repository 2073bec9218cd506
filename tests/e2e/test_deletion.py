"""What a deleted session left in its sandbox is deleted too, also where no runner ran at that time."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from kit.testing import await_until
from tests.support.platform import Platform


def call(platform: Platform, method: str, path: str, body: dict | None = None) -> dict:
    data = json.dumps(body).encode() if body is not None else None
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(platform.url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)


def test_the_files_of_a_deleted_session_are_removed(platform: Platform) -> None:
    tools = [{"type": "agent_toolset_20260401"}]
    agent = call(platform, "POST", "/v1/agents", {"name": "a", "model": "demo", "system": "s", "tools": tools})
    kept, deleted = (call(platform, "POST", "/v1/sessions", {"agent": agent["id"]})["id"] for _ in range(2))
    for session in (kept, deleted):
        text = 'TOOL:write:{"file_path": "/workspace/left.txt", "content": "secret"}'
        call(platform, "POST", f"/v1/sessions/{session}/messages", {"content": text})
        await_until(lambda session=session: _files(platform, session), timeout=20)
        await_until(lambda s=session: call(platform, "GET", f"/v1/sessions/{s}")["status"] == "idle", timeout=20)

    call(platform, "DELETE", f"/v1/sessions/{deleted}")

    await_until(lambda: not _folder(platform, deleted).exists(), timeout=20)
    assert _files(platform, kept)


def _folder(platform: Platform, session: str) -> Path:
    return platform.data_dir / "sandboxes" / session


def _files(platform: Platform, session: str) -> list[Path]:
    return list(_folder(platform, session).rglob("left.txt"))
