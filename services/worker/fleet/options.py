"""What a worker is told to do, judged before it does anything."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from services.worker.fleet.errors import OptionUnusable

KEY_VARIABLE = "MANAGED_AGENTS_ENVIRONMENT_KEY"
KEY_PREFIX = "mawk_"
LONGEST_WAIT_MS = 30_000
SANDBOXES = ("auto", "bubblewrap", "landlock", "none")
_MAX_ID_CHARS = 128
_MAX_KEY_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Options:
    """All of it. The key is not among these: it is kept apart so that no text of this ever has it."""

    url: str
    workdir: Path
    environment_id: str | None = None
    worker_id: str = ""
    once: bool = False
    interval_seconds: float = 1.0
    heartbeat_seconds: float = 20.0
    wait_seconds: float = 25.0
    concurrency: int = 1
    sandbox: str = "auto"
    allow_hosts: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    longest_seconds: float = 3_600.0
    max_idle_seconds: float = 60.0
    memory_seconds: float = 15.0
    ca_file: Path | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    as_json: bool = False
    verbose: bool = False


def check(options: Options) -> Options:
    """The options as they will be used; OptionUnusable names the first one that can't be."""
    _check_url(options.url)
    for name, seconds, least, told in (
        ("--interval-ms", options.interval_seconds, 0.001, "1"),
        ("--heartbeat-ms", options.heartbeat_seconds, 0.001, "1"),
        ("--max-exec-seconds", options.longest_seconds, 0.001, "1"),
        ("--max-idle-seconds", options.max_idle_seconds, 0.0, "0"),
        ("--memory-sync-seconds", options.memory_seconds, 5.0, "5"),
    ):
        if not math.isfinite(seconds) or seconds < least:
            raise OptionUnusable(f"{name} must be a number of at least {told}.")
    if not 0 <= options.wait_seconds * 1000 <= LONGEST_WAIT_MS:
        raise OptionUnusable(f"--wait-ms must be between 0 and {LONGEST_WAIT_MS}.")
    if not 1 <= options.concurrency <= 256:
        raise OptionUnusable("--concurrency must be between 1 and 256.")
    if options.metrics_port is not None and not 0 <= options.metrics_port <= 65535:
        raise OptionUnusable("--metrics-port must be between 0 and 65535.")
    if options.sandbox not in SANDBOXES:
        raise OptionUnusable(f"--sandbox must be one of {', '.join(SANDBOXES)}.")
    for name, text in (("--worker-id", options.worker_id), ("--environment-id", options.environment_id or "")):
        if len(text) > _MAX_ID_CHARS or not text.isprintable():
            raise OptionUnusable(f"{name} must have at most {_MAX_ID_CHARS} printable characters.")
    for name in options.pass_env:
        if not name or "=" in name or "\0" in name or name == KEY_VARIABLE:
            raise OptionUnusable("--pass-env names variables of this worker's environment, and never its key.")
    if options.ca_file is not None and not os.access(options.ca_file, os.R_OK):
        raise OptionUnusable(f"--ca-file: {options.ca_file} cannot be read.")
    _check_workdir(options.workdir)
    return options


def read_key(key_file: Path | None, environment: Mapping[str, str]) -> str | None:
    """The environment key, from a file or the environment; None where there is none."""
    if key_file is None:
        return _checked_key(environment.get(KEY_VARIABLE, ""), KEY_VARIABLE)
    try:
        with open(key_file, "rb") as stream:
            data = stream.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        raise OptionUnusable(f"--key-file: {key_file} cannot be read: {(error.strerror or '').lower()}.") from None
    if len(data) > _MAX_KEY_BYTES or not data.strip():
        raise OptionUnusable(f"--key-file: {key_file} holds no key.")
    return _checked_key(data.decode("utf-8", "replace"), "--key-file")


def _checked_key(value: str, where: str) -> str | None:
    key = value.strip()
    if not key:
        return None
    # What has anything else in it could not be sent as a header.
    if not (key.isascii() and key.isprintable()) or " " in key or not key.startswith(KEY_PREFIX):
        raise OptionUnusable(f"{where} holds no key; a worker key begins with {KEY_PREFIX}.")
    return key


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise OptionUnusable("--url must be like https://agents.example or http://127.0.0.1:3000.") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise OptionUnusable("--url must be like https://agents.example or http://127.0.0.1:3000.")
    if parts.username or parts.password:
        raise OptionUnusable(f"--url must hold no credentials; the key is read from {KEY_VARIABLE} or --key-file.")
    if parts.query or parts.fragment:
        raise OptionUnusable("--url must end with the path, without ? and #.")


def _check_workdir(workdir: Path) -> None:
    if not workdir.is_dir():
        raise OptionUnusable(f"--workdir: {workdir} is not a folder; make it first.")
    if not os.access(workdir, os.R_OK | os.W_OK | os.X_OK):
        raise OptionUnusable(f"--workdir: {workdir} cannot be read and written by this user.")
    if Path(os.path.realpath(workdir)) == Path("/"):
        raise OptionUnusable("--workdir: the root of the file system is no working folder; name one below it.")
