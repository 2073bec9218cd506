"""The database and the message server below the services: embedded in the data folder, or the operator's own."""

import functools
import hashlib
import hmac
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from cli.catalog import ROLES, Servers
from cli.data_folder import DataFolder
from cli.errors import CannotStart
from kit.embedded.errors import EmbeddedServerError
from kit.embedded.nats import EmbeddedNats
from kit.embedded.postgres import EmbeddedPostgres

DATABASE = "managed_agents"


class Foundation:
    """Starts what is embedded, prepares roles and schemas, and says where everything is.

    All methods block: they are called from a thread of the supervisor's.
    """

    def __init__(self, folder: DataFolder, *, database_url: str | None, nats_url: str | None) -> None:
        self._folder = folder
        self._database_url = database_url
        self._nats_url = nats_url
        self._postgres = None if database_url else EmbeddedPostgres(folder.path / "postgres")
        self._nats = None if nats_url else EmbeddedNats(folder.path / "nats")
        self._lock = threading.Lock()

    def start(self) -> Servers:
        """Bring up what is missing. Also after a crash of one of them; a running one is left as it is."""
        with self._lock, ThreadPoolExecutor(1) as pool:
            try:
                nats = pool.submit(self._start_nats)
                databases = self._start_databases()
                return Servers(databases=databases, nats=nats.result())
            except (EmbeddedServerError, OSError) as error:
                raise CannotStart(str(error)) from error

    def missing(self) -> list[str]:
        """Which embedded server has died, or had to be ended since it could not go on."""
        if self._nats is not None:
            self._nats.end_broken()
        named = (("PostgreSQL", self._postgres), ("NATS", self._nats))
        return [name for name, server in named if server is not None and server.pid() is None]

    def stop(self) -> None:
        with self._lock:
            for server in (self._nats, self._postgres):
                if server is not None:
                    server.stop()

    def _start_nats(self) -> str:
        return self._nats.start() if self._nats is not None else str(self._nats_url)

    def _start_databases(self) -> dict[str, str]:
        if self._postgres is None:
            return self._prepare_external()
        administrator = self._postgres.start()
        self._postgres.once(f"{DATABASE}.{'.'.join(ROLES)}", functools.partial(_prepare, administrator))
        return {role: self._postgres.address_of(role, DATABASE) for role in ROLES}

    def _prepare_external(self) -> dict[str, str]:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        from kit.embedded.roles import create_role_and_schema

        assert self._database_url is not None
        try:
            database = str(conninfo_to_dict(self._database_url).get("dbname") or DATABASE)
            return create_role_and_schema(self._database_url, database, ROLES, password=self._password)
        except psycopg.errors.InsufficientPrivilege as error:
            raise CannotStart(
                f"The user of the database URL may not create the services' roles ({_first_line(error)}). "
                "Give a user with CREATEROLE, or run each service with a role of its own (see deploy/)."
            ) from error
        except psycopg.Error as error:
            raise CannotStart(f"The database can't be used: {_first_line(error)}") from error

    def _password(self, role: str) -> str:
        """The same at each start, known only to whoever reads the data folder's key."""
        return hmac.digest(self._folder.first_secret(), f"database role {role}".encode(), hashlib.sha256).hex()


def _prepare(administrator: str) -> None:
    # In a process of its own: the driver is ten megabytes, which only the minute of a first start needs.
    command = [sys.executable, "-P", "-m", "kit.embedded.roles", administrator, DATABASE, *ROLES]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
        raise CannotStart(f"The embedded database can't be prepared: {reason}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
