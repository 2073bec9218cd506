"""The published clients, unchanged but for `base_url`, do the main job against us.

Each runs in a process of its own: two generations of the Python client (the newer
with strict validation of every response) and the TypeScript client. They must see
the same types of events.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "tests" / "clients"
LEGACY_PYTHON = ROOT / ".venv-legacy" / "bin" / "python"
NODE = Path(sys.executable).with_name("node")

COMMANDS = {
    "python-2.14.0-strict": [sys.executable, str(CLIENTS / "journey.py"), "{url}", "--strict"],
    "python-0.125.0": [str(LEGACY_PYTHON), str(CLIENTS / "journey.py"), "{url}", "--drops", "session.usage"],
    "typescript-1.14.0": [str(NODE), str(CLIENTS / "typescript" / "journey.mjs"), "{url}"],
}


@pytest.mark.parametrize("client", COMMANDS)
def test_a_published_client_does_the_main_job(platform_url: str, client: str) -> None:
    command = [part.format(url=platform_url) for part in COMMANDS[client]]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANTHROPIC")}

    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)

    assert done.returncode == 0, done.stderr[-4000:]
    types = json.loads(done.stdout)["types"]
    ending = ["session.thread_status_idle", "session.usage", "session.status_idle"]
    assert types[-3:] == ending or (client == "python-0.125.0" and types[-2:] == [ending[0], ending[2]])
