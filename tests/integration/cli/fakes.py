"""Stand-ins for the services, so that the supervisor can be proved against every way a service may behave.

Each is a real process started as the real one is. What it does wrong is told by MANAGED_AGENTS_FAKE_<NAME>:
`crash` ends at start with a reason, `brittle` ends once the file `crash` appears, `deaf` ignores
SIGTERM, `mute` never becomes ready, `orphan` leaves a child in its group.
"""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from kit.testing import await_until, free_port

_MODULES = ["gateway", "scheduler", "sessions", "vault", "worker/runner", "worker/queue"]

_FAKE = """
import asyncio, json, os, signal, subprocess, sys
from pathlib import Path

PREFIX = "MANAGED_AGENTS_"
folder = Path(os.environ[PREFIX + "DATA_DIR"])

async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\nconnection: close\\r\\n\\r\\n")
    await writer.drain()
    writer.close()

async def main(name):
    how = os.environ.get(PREFIX + "FAKE_" + name.upper(), "")
    with open(folder / "story", "a") as story:
        story.write(f"start {name}\\n")
    (folder / f"{name}.env").write_text(json.dumps(dict(os.environ)))
    if how == "crash":
        sys.exit(json.dumps({"level": "error", "event": "the vault can not be opened", "error": "wrong secret key"}))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, (lambda: None) if how == "deaf" else stop.set)
    pipe = int(os.environ[PREFIX + "SUPERVISOR_FD"])
    if how != "deaf":
        loop.add_reader(pipe, lambda: os.read(pipe, 1) or stop.set())
    if how == "orphan":
        subprocess.Popen([sys.executable, "-c", "import signal, time; signal.pause()  # left behind"])
    if how == "mute":
        await stop.wait()
    if name == "gateway":
        server = await asyncio.start_server(answer, os.environ[PREFIX + "HOST"], int(os.environ[PREFIX + "PORT"]))
    os.write(int(os.environ[PREFIX + "READY_FD"]), b"\\n")
    while how == "brittle" and not stop.is_set():
        await asyncio.sleep(0.02)
        if (folder / "crash").exists():
            (folder / "crash").unlink()
            os._exit(3)
    await stop.wait()
    with open(folder / "story", "a") as story:
        story.write(f"stop {name}\\n")
    os._exit(0)

def run(name):
    asyncio.run(main(name))
"""


def make_services(folder: Path) -> None:
    """A package `services` in `folder` that shadows the real one when the folder is first on the path."""
    for module in _MODULES:
        place = folder / "services" / module
        place.mkdir(parents=True)
        (place / "__main__.py").write_text(f"from services.fake import run\nrun({place.name!r})\n")
        (place / "__init__.py").touch()
    (folder / "services" / "fake.py").write_text(_FAKE)
    for package in ("services", "services/worker"):
        (folder / package / "__init__.py").touch()


class Up:
    """A running `managed-agents up` over the stand-ins."""

    def __init__(self, data_dir: Path, services: Path, *arguments: str, port: int | None = None, **fakes: str) -> None:
        self.data_dir = data_dir
        self.port = port or free_port()
        self.lines: list[str] = []
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MANAGED_AGENTS_")}
        environment |= {"PYTHONPATH": str(services), "ANTHROPIC_API_KEY": "sk-of-the-vault", "OWNERS_SECRET": "x"}
        environment |= {f"MANAGED_AGENTS_FAKE_{name.upper()}": how for name, how in fakes.items()}
        self.output = data_dir.parent / f"{data_dir.name}.{self.port}.out"
        command = [sys.executable, "-c", "from cli.main import main; main()", "up"]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), "--data-dir", str(data_dir), *arguments],
                env=environment,
                cwd=Path(__file__).parents[3],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        return self.output.read_text()

    def story(self) -> list[str]:
        return (self.data_dir / "story").read_text().splitlines()

    def wait_up(self) -> None:
        await_until(lambda: "is up at" in self.said() or self.process.poll() is not None, timeout=30)
        assert "is up at" in self.said(), self.said()

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)

    def leftovers(self) -> list[str]:
        """Command lines of live processes that belong to this folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.process.pid:
                continue
            try:
                surroundings = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                if str(self.data_dir).encode() in surroundings:
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


@contextmanager
def up(data_dir: Path, services: Path, *arguments: str, port: int | None = None, **fakes: str):
    platform = Up(data_dir, services, *arguments, port=port, **fakes)
    try:
        yield platform
    finally:
        if platform.process.poll() is None:
            platform.process.send_signal(signal.SIGINT)
            try:
                platform.process.wait(40)
            except subprocess.TimeoutExpired:
                platform.process.kill()
                platform.process.wait()
