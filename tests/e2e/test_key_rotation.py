"""`managed-agents keys rotate` on a running platform: one command, everything is sealed anew, a restart opens it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.platform import running_platform

CREDENTIAL = {
    "auth": {"type": "environment_variable", "secret_name": "KEY", "secret_value": "a-canary-of-the-rotation"}
}


def ask(url: str, body: Any = None) -> Any:
    """A request of a plain caller."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=content, headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def keys(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command on a platform's folder."""
    command = [str(Path(sys.executable).with_name("managed-agents")), "keys", "rotate"]
    return subprocess.run([*command, "--data-dir", str(folder), *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.timeout(150)
def test_a_key_is_rotated_by_one_command_and_opens_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running_platform(folder) as platform:
        vault_id = ask(f"{platform.url}/v1/vaults", {"name": "kept"})["id"]
        made = ask(f"{platform.url}/v1/vaults/{vault_id}/credentials", CREDENTIAL)
        before = (folder / "secret.key").read_text()
        first, second = keys(folder, "--json"), keys(folder)
        assert first.returncode == second.returncode == 0, first.stderr + second.stderr
        told = json.loads(first.stdout)
        assert (told["provider"], told["versions"], told["rows_to_rewrap"]) == ("keyfile", 2, 0)
        assert told["sealed_rows"] >= 3 and "All" in second.stderr
        versions = json.loads((folder / "secret.key").read_text())["versions"]
        assert len(versions) == 3 and versions[0]["secret"] == before.strip()
        shown = first.stdout + first.stderr + second.stdout + second.stderr + platform.logs()
        assert not any(version["secret"] in shown for version in versions)
        resumed = keys(folder, "--resume", "--json")
        assert json.loads(resumed.stdout)["versions"] == 3
    alone = keys(folder)
    assert alone.returncode == 1 and "No platform runs" in alone.stderr
    with running_platform(folder) as platform:
        again = ask(f"{platform.url}/v1/vaults/{vault_id}/credentials/{made['id']}/rotate", {"value": "another"})
        assert again["secret_version"] == 2, "what was sealed before opens and is sealed anew"
