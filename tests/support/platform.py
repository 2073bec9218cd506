"""A whole platform for tests: `managed-agents up` on a free port and a fresh folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.testing import await_until, free_port

START_SECONDS, STOP_SECONDS = 60, 30
SECRETS_OF_THE_HOST = ("ANTHROPIC_", "OPENAI_", "MANAGED_AGENTS_", "OTEL_")


class Platform:
    """A running platform. `url` is its origin, `data_dir` its folder, `process` its supervisor."""

    def __init__(
        self,
        data_dir: Path,
        *,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        port: int | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._output = data_dir.with_suffix(".out")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(SECRETS_OF_THE_HOST)}
        command = [str(Path(sys.executable).with_name("managed-agents")), "up"]
        with self._output.open("ab") as output:
            self._began = output.tell()
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), "--data-dir", str(data_dir), *arguments],
                env={**clean, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_healthy(self) -> None:
        """Returns when the gateway and `up` itself say that it is ready; AssertionError with the output otherwise.

        Until `up` says so, a service that dies is one that could not start.
        """
        await_until(lambda: self.process.poll() is not None or self.is_ready(), timeout=START_SECONDS)
        await_until(lambda: self.process.poll() is not None or self._is_up(), timeout=START_SECONDS)
        assert self.process.poll() is None, f"up ended with {self.process.returncode}: {self.output()}"

    def is_ready(self) -> bool:
        """Whether the gateway answers its readiness check."""
        try:
            with urllib.request.urlopen(f"{self.url}/v1/x/health?ready=true", timeout=2) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def _is_up(self) -> bool:
        said = self.output()[self._began :]
        return "managed-agents is up at" in said or '"url"' in said

    def output(self) -> str:
        """What `up` printed so far."""
        return self._output.read_text(errors="replace")

    def logs(self) -> str:
        """Every line that the services logged."""
        return "\n".join(path.read_text(errors="replace") for path in sorted((self.data_dir / "logs").glob("*.log")))

    def stop(self) -> int:
        """Ctrl-C, as a person would; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_SECONDS)


@contextmanager
def running_platform(data_dir: Path, **options) -> Iterator[Platform]:
    """Starts a platform, waits for it, and stops it whatever happens."""
    platform = Platform(data_dir, **options)
    try:
        platform.wait_healthy()
        yield platform
    finally:
        try:
            platform.stop()
        except subprocess.TimeoutExpired:
            os.killpg(platform.process.pid, signal.SIGKILL)
            raise


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One platform for all tests of this process that only talk to it; the model is `demo`."""
    with running_platform(tmp_path_factory.mktemp("platform") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def platform_url(platform: Platform) -> str:
    """The origin of the shared platform."""
    return platform.url
