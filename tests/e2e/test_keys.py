"""The operator makes the first key and can not lock himself out; a secret is shown once and kept nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from kit.testing import await_until
from tests.support.platform import SECRETS_OF_THE_HOST, Platform, running_platform
from tests.support.rows import database_of

pytestmark = pytest.mark.timeout(120)
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(SECRETS_OF_THE_HOST)}


def keys(*arguments: str, api_key: str = "", code: int = 0) -> str:
    command = [str(Path(sys.executable).with_name("managed-agents")), "keys", *arguments]
    environment = CLEAN | ({"MANAGED_AGENTS_API_KEY": api_key} if api_key else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def status(platform: Platform, key: str = "") -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx2.get(f"{platform.url}/v1/agents", headers=headers).status_code


def test_keys_from_the_first_to_the_last(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    assert "No platform runs in" in keys("list", "--data-dir", str(nothing), code=1)
    with running_platform(tmp_path / "data") as platform:
        here = ("--data-dir", str(platform.data_dir))
        assert status(platform) == 200
        assert "role admin" in keys("create", "--name", "first", "--role", "member", *here, code=1)
        first = keys("create", "--name", "first", *here).strip()
        assert await_until(lambda: status(platform) == 401, timeout=3)
        assert status(platform, first) == 200
        # Whoever lost the secret makes another key from the folder alone.
        second = json.loads(keys("create", "--name", "second", "--owner", "Ada", "--json", *here))
        assert status(platform, second["secret_key"]) == 200
        listed = json.loads(keys("list", "--json", *here))
        assert [key["name"] for key in listed] == ["second", "first"]
        assert "secret_key" not in listed[0] and listed[0]["owner_name"] == "Ada"

        there = ("--url", platform.url)
        team = json.loads(keys("create", "--name", "b", "--workspace", "wrkspc_b", "--json", *there, api_key=first))
        assert json.loads(keys("list", "--workspace", "wrkspc_b", "--json", *there, api_key=first))[0]["name"] == "b"
        assert "401" in keys("list", *there, code=1)
        assert "403" in keys("list", "--workspace", "wrkspc_c", *there, api_key=team["secret_key"], code=1)

        _is_kept_nowhere(platform, first, second["secret_key"], team["secret_key"])
        keys("revoke", team["id"], "--workspace", "wrkspc_b", *there, api_key=first)
        for key in listed:
            keys("revoke", key["id"], *here)
        assert "not found" in keys("revoke", listed[0]["id"], *here, code=1)
        assert await_until(lambda: status(platform) == 200, timeout=3)
        assert keys("list", *here) == ""


def _is_kept_nowhere(platform: Platform, *secrets: str) -> None:
    with database_of(platform) as connection:
        rows = str(connection.execute("SELECT k::text FROM vault.api_keys k").fetchall())
    kept = platform.logs() + platform.output() + rows
    assert not [secret for secret in secrets if secret in kept]
