"""Proves: the sandbox keeps its promises when an ordinary user runs the platform, by running this folder as one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

USER = "65534"
FOLDER = Path(__file__).parent
PROJECT = FOLDER.parents[2]
# `env` in between: only a second exec happens without what root's capabilities let setpriv do.
SETPRIV = (
    *("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"),
    *("--bounding-set=-all", "--inh-caps=-all", "env"),
)


def _interpreter(environment: dict[str, str]) -> str | None:
    """An interpreter that the user can run: ours may lie in root's home."""
    wanted = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{wanted}", f"/usr/local/bin/{wanted}"):
        line = [*SETPRIV, candidate, "-c", "import pytest, hypothesis, grpc"]
        if os.path.exists(candidate) and subprocess.run(line, env=environment, capture_output=True).returncode == 0:
            return candidate
    return None


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "module",
    [
        "escapes",
        "lifetime",
        "egress",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("conformance", "limits")),
    ],
)
def test_the_suite_as_an_ordinary_user(module, tmp_path_factory):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become another user, and needs setpriv; a user's own run covers this")
    # Outside root's temporary folder, which nobody else may enter.
    home = Path(f"/tmp/sandbox-as-user-{os.getpid()}-{module}")
    home.mkdir(mode=0o700)
    os.chown(home, int(USER), int(USER))
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(
            path for path in sys.path if path and os.path.isdir(path) and "lib/python" not in path
        ),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(home / "hypothesis"),
    }
    environment["PYTHONPATH"] += os.pathsep + next(path for path in sys.path if path.endswith("site-packages"))
    try:
        interpreter = _interpreter(environment)
        if interpreter is None:
            pytest.skip("no interpreter of this version that an ordinary user can run")
        line = [*SETPRIV, interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={home / 't'}"]
        ended = subprocess.run(
            [*line, str(FOLDER / f"test_{module}.py")], env=environment, cwd=PROJECT, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    finally:
        shutil.rmtree(home, ignore_errors=True)
