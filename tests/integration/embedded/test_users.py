"""Proves that PostgreSQL starts for an ordinary user, for root, and for root where user namespaces are closed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.embedded import processes
from kit.embedded.postgres import EmbeddedPostgres
from tests.integration.embedded.workers import (
    ROOT,
    finish,
    folder_for_everyone,
    ordinary_user,
    reported_pid,
    use_postgres,
)

# A user namespace that holds every account but may hold no further namespace, like the inside of most containers.
_WITHOUT_NAMESPACES = """
import ctypes, os, sys
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    ctypes.CDLL(None).unshare(0x10000000)
    os.write(ready[1], b"1")
    os.read(go[0], 1)
    os.setgid(0), os.setuid(0)
    open("/proc/sys/user/max_user_namespaces", "w").write("0")
    os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
os.read(ready[0], 1)
for name in ("uid_map", "gid_map"):
    open(f"/proc/{child}/{name}", "w").write("0 0 65536")
os.write(go[1], b"1")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

_START = """
import sys, psycopg
from pathlib import Path
from kit.embedded.postgres import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), settings={"fsync": "off"})
with psycopg.connect(server.start()) as connection:
    connection.execute("select 1")
print("owner", (server.data_dir / "cluster").stat().st_uid, "user", server.data_dir.stat().st_uid)
server.stop()
"""


def test_an_ordinary_user_needs_nothing_special() -> None:
    python = ordinary_user()
    if python is None:
        pytest.skip("needs root, setpriv and a Python that every account may run")
    with folder_for_everyone() as folder:
        user = use_postgres(folder / "postgres", python=python)
        pid = reported_pid(user)
        finish(user)
        assert not processes.runs(pid, program="postgres")
        assert (folder / "postgres" / "cluster").stat().st_uid != 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_root_keeps_its_files_in_a_private_folder(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    server = EmbeddedPostgres(tmp_path / "private" / "postgres", settings={"fsync": "off"})
    try:
        server.start()
        assert (server.data_dir / "cluster").stat().st_uid == 0
    finally:
        server.stop()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_root_without_user_namespaces_changes_to_an_account() -> None:
    with folder_for_everyone() as folder:
        start = [_START, str(folder / "postgres")]
        closed = _run([sys.executable, "-c", _WITHOUT_NAMESPACES, *start])
        if "can't reach" in closed.stderr:
            pytest.skip("the wheels of this environment lie in a private folder")
        assert closed.returncode == 0, closed.stderr
        assert "owner 0" not in closed.stdout
        # Where namespaces are open again, the folder goes back to root and still serves.
        opened = _run([sys.executable, "-c", *start])
        assert opened.returncode == 0, opened.stderr
        assert "owner 0" in opened.stdout


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
