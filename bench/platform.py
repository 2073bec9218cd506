"""Starts and stops a platform of its own for a run, and reads what its processes cost from /proc.

Embedded servers as anybody gets them: fsync and synchronous_commit on, one runner, nothing tuned for the occasion.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from kit.testing import await_until, free_port

_ROOT = Path(__file__).parents[1]
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MEGABYTE = 1024 * 1024
_UP = [sys.executable, "-c", "from cli.main import main; main()", "up"]


class Platform:
    """One platform in a folder that is thrown away; `start` and `stop` may be repeated, the data stays."""

    def __init__(self, servers: Mapping[str, str] | None = None) -> None:
        """`servers` names external ones by the settings that address them; without it the platform starts its own."""
        self._servers = dict(servers or {})
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self._model = subprocess.Popen(
            [sys.executable, "-m", "bench.model_server"], cwd=_ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self._model.stdout is not None
        self._model_port = int(self._model.stdout.readline())
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data_dir(self) -> Path:
        """Where it keeps everything."""
        return self._folder / "data"

    def start(self) -> float:
        """Seconds until it says that it is healthy, which it does once every process serves."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MANAGED_AGENTS_")}
        environment |= {
            "MANAGED_AGENTS_MODEL_VENDOR": "openai",
            "MANAGED_AGENTS_MODEL_BASE_URL": f"http://127.0.0.1:{self._model_port}/v1",
            "MANAGED_AGENTS_MODEL_API_KEY": "none",
            "MANAGED_AGENTS_MODEL": "bench",
        }
        environment |= self._servers
        command = [*_UP, "--port", str(self.port), "--data-dir", str(self.data_dir), "--json"]
        began = time.perf_counter()
        with open(self._folder / "up.log", "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"The platform did not start: {(self._folder / 'up.log').read_text()[-2000:]}")
        return time.perf_counter() - began

    def stop(self) -> float:
        """Seconds until nothing of it is left."""
        if self._process is None:
            return 0.0
        began, process = time.perf_counter(), self._process
        self._process = None
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
        return time.perf_counter() - began

    def close(self) -> None:
        self.stop()
        self._model.terminate()
        self._model.wait()
        assert self._model.stdout is not None
        self._model.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def cpu(self) -> Counter[str]:
        """CPU seconds so far, by process; all of Postgres counts as one."""
        spent: Counter[str] = Counter()
        for pid, name in self._processes().items():
            spent[name] += _cpu(pid)
        return spent

    def memory(self) -> dict[str, float]:
        """Megabytes: resident sum of the Python processes, their proportional share, and the sum of everything."""
        processes = self._processes()
        python = [pid for pid, name in processes.items() if name not in ("postgres", "nats", "sandbox")]
        return {
            "python_rss": sum(map(_rss, python)) / _MEGABYTE,
            "python_pss": sum(map(_pss, python)) / _MEGABYTE,
            "all_rss": sum(map(_rss, processes)) / _MEGABYTE,
        }

    async def settle(self) -> None:
        """Wait until nothing works any more, so that one measurement does not pay for another."""
        last = [self.cpu().total(), time.monotonic()]

        def quiet() -> bool:
            now = time.monotonic()
            if now - last[1] < 0.5:
                return False
            spent, before, since = self.cpu().total(), last[0], now - last[1]
            last[:] = [spent, now]
            return (spent - before) / since < 0.1

        await await_until(quiet, timeout=30)

    def _processes(self) -> dict[int, str]:
        assert self._process is not None
        children: dict[int, list[int]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (fields := _stat(int(entry))):
                children.setdefault(int(fields[1]), []).append(int(entry))
        found, waiting = {}, [self._process.pid]
        while waiting:
            pid = waiting.pop()
            found[pid] = _name(pid)
            waiting += children.get(pid, [])
        return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the program's name; empty for one that has gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def _cpu(pid: int) -> float:
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / _TICKS if fields else 0.0


def _rss(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _name(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "sandbox"
    if "services." in command and "-m" in command:
        return command.rsplit("services.", 1)[1].split()[0].rsplit(".", 1)[-1]
    if "postgres" in command.split(" ", 1)[0] or command.startswith("postgres"):
        return "postgres"
    if "nats-server" in command:
        return "nats"
    return "supervisor" if " up " in command else "sandbox"
