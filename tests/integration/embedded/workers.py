"""Processes for these tests: each uses an embedded server until its standard input closes."""

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]

_USE_POSTGRES = """
import sys
from pathlib import Path
import psycopg
from kit.embedded.postgres import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]))
dsn = server.start()
with psycopg.connect(dsn) as connection:
    connection.execute("select 1")
print(server.pid(), flush=True)
sys.stdin.read()
server.stop()
"""


def use_postgres(data_dir: Path, *, python: list[str] | None = None, **options) -> subprocess.Popen[str]:
    command = [*(python or [sys.executable]), "-c", _USE_POSTGRES, str(data_dir)]
    options.setdefault("cwd", ROOT)
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def reported_pid(user: subprocess.Popen[str]) -> int:
    """The server's pid as the process saw it, once it is connected."""
    assert user.stdout is not None
    line = user.stdout.readline()
    if not line:
        raise AssertionError(user.communicate()[1])
    return int(line)


def finish(user: subprocess.Popen[str]) -> None:
    """Let the process leave the server by itself."""
    _, errors = user.communicate(timeout=30)
    assert user.returncode == 0, errors


def ordinary_user() -> list[str] | None:
    """A command prefix that runs Python as the account nobody, or None where this host can't."""
    setpriv = shutil.which("setpriv")
    if os.getuid() != 0 or setpriv is None:
        return None
    become = [setpriv, "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    packages = os.pathsep.join([str(ROOT), str(ROOT / "gen"), sysconfig.get_path("purelib")])
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        command = [*become, "env", "-i", "PATH=/usr/bin:/bin", f"PYTHONPATH={packages}", python]
        if (
            shutil.which(python)
            and subprocess.run([*command, "-c", "import psycopg"], capture_output=True).returncode == 0
        ):
            return command
    return None


@contextlib.contextmanager
def folder_for_everyone() -> Iterator[Path]:
    """A fresh folder that every account may enter and fill; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(prefix="ma-everyone-"))
    try:
        folder.chmod(0o777)
        yield folder
    finally:
        shutil.rmtree(folder)
