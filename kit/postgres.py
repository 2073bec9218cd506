"""The only way to SQL: transactions that know their tenant, over a few long-lived connections.

    database = Database(settings.database_dsn(), schema="sessions")
    await database.open()
    async with database.transaction(context.workspace_id) as tx:
        agent = await tx.one("SELECT id, name FROM agents WHERE workspace_id = %(workspace_id)s AND id = %(id)s",
                             {"id": agent_id}, row=Agent)

A transaction commits at the end of its block and rolls back on any exception. `read()` runs each statement on its own.
`workspace_id` is bound into the parameters of every statement here and nowhere else. Work that spans tenants (claims,
sweeps, the relay) says so by `platform_transaction()` or `platform_read()`. Beneath that, the server itself shows and
takes rows of one workspace only (`kit.tenancy`): each connection says whose work it does, and says it anew only when
that is another's than the last one's. Connections are handed out to whom they served last, so one tenant pays nothing.

Failures: a lost conflict is WriteConflict; whatever another attempt may cure (connection lost, none free in time,
server starting or full) is Unavailable with a delay. All other errors of the driver pass unchanged, so a store can map
a constraint by its name. A connection that broke while idle is noticed before it is handed out and replaced, so a
restart of the server costs a short wait. After a cancelled block the connection is dropped, never reused.
"""

import asyncio
import select
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import lru_cache
from typing import Any, LiteralString, TypeVar, cast, overload

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import class_row, tuple_row

from kit.config import SecretStr, reveal
from kit.errors import Internal, Unavailable, WriteConflict
from kit.telemetry import log, register_secret, untraced
from kit.tenancy import EVERY_WORKSPACE, SETTING

T = TypeVar("T")
Params = Mapping[str, Any]

_BEGIN = "BEGIN"
# One round trip; only this transaction may be lost in a power cut, never an earlier or a later one.
_BEGIN_RELAXED = "BEGIN; SET LOCAL synchronous_commit TO off"
# As many connections are opened before one is made to serve another tenant than before: one for the platform's own
# work and one for the only tenant of most installations.
_KEPT_APART = 2


class _Connection(psycopg.AsyncConnection[Any]):
    """A connection that knows whose rows the server lets it see; None where that is not certain."""

    workspace: str | None = EVERY_WORKSPACE


class Tx:
    """Statements of one tenant (or of the platform, where `workspace_id` is None)."""

    __slots__ = ("_connection", "_workspace_id")

    def __init__(self, connection: psycopg.AsyncConnection[Any], workspace_id: str | None) -> None:
        self._connection = connection
        self._workspace_id = workspace_id

    @property
    def workspace_id(self) -> str:
        """The tenant. Platform work has none and must not ask."""
        if self._workspace_id is None:
            raise Internal("Platform-wide work was asked for its workspace.")
        return self._workspace_id

    def for_workspace(self, workspace_id: str) -> "Tx":
        """The same transaction, scoped to one tenant: for platform work that found out whose row it has."""
        return Tx(self._connection, workspace_id)

    async def execute(self, sql: LiteralString, params: Params | None = None) -> int:
        """Run a statement; the number of rows that it touched."""
        return (await self._run(sql, params, None)).rowcount

    @overload
    async def one(self, sql: LiteralString, params: Params | None = None) -> tuple[Any, ...]: ...
    @overload
    async def one(self, sql: LiteralString, params: Params | None = None, *, row: type[T]) -> T: ...
    @overload
    async def one(self, sql: LiteralString, params: Params | None, row: type[T]) -> T: ...
    async def one(self, sql: LiteralString, params: Params | None = None, row: Any = None) -> Any:
        """The first row of a statement that always has one."""
        found = await (await self._run(sql, params, row)).fetchone()
        if found is None:
            raise Internal("A statement that always answers a row answered none.")
        return found

    @overload
    async def maybe_one(self, sql: LiteralString, params: Params | None = None) -> tuple[Any, ...] | None: ...
    @overload
    async def maybe_one(self, sql: LiteralString, params: Params | None = None, *, row: type[T]) -> T | None: ...
    @overload
    async def maybe_one(self, sql: LiteralString, params: Params | None, row: type[T]) -> T | None: ...
    async def maybe_one(self, sql: LiteralString, params: Params | None = None, row: Any = None) -> Any:
        """The first row, if there is any."""
        return await (await self._run(sql, params, row)).fetchone()

    @overload
    async def all(self, sql: LiteralString, params: Params | None = None) -> list[tuple[Any, ...]]: ...
    @overload
    async def all(self, sql: LiteralString, params: Params | None = None, *, row: type[T]) -> list[T]: ...
    @overload
    async def all(self, sql: LiteralString, params: Params | None, row: type[T]) -> list[T]: ...
    async def all(self, sql: LiteralString, params: Params | None = None, row: Any = None) -> Any:
        """All rows; the statement's LIMIT is the bound."""
        return await (await self._run(sql, params, row)).fetchall()

    async def _run(self, sql: LiteralString, params: Params | None, row: Any) -> psycopg.AsyncCursor[Any]:
        bound = dict(params) if params else {}
        if self._workspace_id is not None:
            bound["workspace_id"] = self._workspace_id
        cursor = self._connection.cursor(row_factory=tuple_row if row is None else class_row(row))
        return await cursor.execute(sql, bound)


class Database:
    """One service's connections, at most `max_connections`; the last used one is handed out first."""

    def __init__(
        self,
        dsn: str | SecretStr,
        schema: str,
        *,
        max_connections: int = 12,
        acquire_seconds: float = 5.0,
        statement_seconds: float = 10.0,
        lock_seconds: float = 4.0,
        idle_in_transaction_seconds: float = 15.0,
    ) -> None:
        self.schema = schema
        self._dsn = reveal(dsn)
        given = conninfo_to_dict(self._dsn)
        register_secret(str(given.get("password") or ""))
        self._acquire_seconds = acquire_seconds
        self._idle: list[_Connection] = []
        self._open = 0
        self._slots = asyncio.Semaphore(max_connections)
        self._closed = True
        limits = {
            "search_path": schema,
            SETTING: EVERY_WORKSPACE,
            "statement_timeout": f"{statement_seconds * 1000:.0f}",
            "lock_timeout": f"{lock_seconds * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{idle_in_transaction_seconds * 1000:.0f}",
            # A statement whose client is gone (killed, cancelled) ends, and gives its locks back, in about a second.
            "client_connection_check_interval": "1000",
        }
        ours = " ".join(f"-c {name}={value}" for name, value in limits.items())
        self._options = f"{given['options']} {ours}" if given.get("options") else ours

    async def open(self, wait_seconds: float = 30.0) -> None:
        """Ready for use once the server answers; Unavailable if it doesn't in time."""
        self._closed = False
        self._idle.append(await self._connect_until(time.monotonic() + wait_seconds))

    async def close(self) -> None:
        """Close the connections; one in use is closed by its user's release. Safe to repeat."""
        self._closed = True
        while self._idle:
            self._open -= 1
            await self._idle.pop().close()

    @asynccontextmanager
    async def transaction(self, workspace_id: str, *, relaxed: bool = False) -> AsyncIterator[Tx]:
        """A tenant's transaction. `relaxed` commits without waiting for the disk: a power cut may lose this one."""
        async with self._transaction(workspace_id, relaxed, workspace_id) as tx:
            yield tx

    @asynccontextmanager
    async def read(self, workspace_id: str) -> AsyncIterator[Tx]:
        """A tenant's reads, each statement on its own."""
        async with self._borrow(workspace_id) as connection:
            await _serve(connection, workspace_id)
            yield Tx(connection, workspace_id)

    @asynccontextmanager
    async def statements(self, workspace_id: str) -> AsyncIterator[Tx]:
        """A tenant's writes where each statement is a whole transaction of its own: saves BEGIN and COMMIT."""
        async with self._borrow(workspace_id) as connection:
            await _serve(connection, workspace_id)
            yield Tx(connection, workspace_id)

    @asynccontextmanager
    async def platform_transaction(
        self, *, relaxed: bool = False, within: Collection[str] | None = None
    ) -> AsyncIterator[Tx]:
        """A transaction over all tenants, for claims, sweeps and the relay only.

        `within` names the workspaces that it is known to stay in: of a single one the server shows no other's rows.
        """
        async with self._transaction(None, relaxed, _single(within)) as tx:
            yield tx

    @asynccontextmanager
    async def platform_read(self) -> AsyncIterator[Tx]:
        """Reads over all tenants."""
        async with self._borrow(None) as connection:
            await _serve(connection, None)
            yield Tx(connection, None)

    @asynccontextmanager
    async def platform_statements(self, *, within: Collection[str] | None = None) -> AsyncIterator[Tx]:
        """Writes over all tenants where each statement is a whole transaction of its own; `within` as above."""
        async with self._borrow(_single(within)) as connection:
            await _serve(connection, _single(within))
            yield Tx(connection, None)

    async def connect(self) -> _Connection:
        """A dedicated connection, in autocommit, with this database's settings, for the platform's own hot loops."""
        connection = await _Connection.connect(
            self._dsn,
            autocommit=True,
            prepare_threshold=1,
            connect_timeout=5,
            application_name=f"managed-agents {self.schema}",
            options=self._options,
        )
        connection.prepared_max = 400
        return connection

    @asynccontextmanager
    async def _transaction(self, workspace_id: str | None, relaxed: bool, shown: str | None) -> AsyncIterator[Tx]:
        async with self._borrow(shown) as connection:
            wanted = _wanted(shown)
            begin = _BEGIN_RELAXED if relaxed else _BEGIN
            if connection.workspace != wanted:
                # Until this is committed nobody knows what the connection will be left with.
                begin, connection.workspace = f"{begin}; {_setting(wanted)}", None
            # Untraced where it names the workspace, which has no place in a span.
            with untraced() if begin not in (_BEGIN, _BEGIN_RELAXED) else nullcontext():
                await connection.execute(cast(LiteralString, begin))
            try:
                yield Tx(connection, workspace_id)
            except Exception:
                # A rollback that fails leaves a connection in a transaction, which the release then drops.
                with suppress(psycopg.Error):
                    await connection.execute("ROLLBACK")
                raise
            ended = await connection.execute("COMMIT")
            if ended.statusmessage != "COMMIT":
                raise Internal("A statement failed inside a transaction that went on; nothing of it was stored.")
            connection.workspace = wanted

    @asynccontextmanager
    async def _borrow(self, workspace_id: str | None) -> AsyncIterator[_Connection]:
        try:
            connection = await self._acquire(_wanted(workspace_id))
        except psycopg.Error as error:
            raise _translated(error) or error from error
        intact = False
        try:
            yield connection
            intact = True
        except psycopg.Error as error:
            intact = True
            translated = _translated(error)
            if translated is None:
                raise
            log.warning("database call failed", sqlstate=error.sqlstate, error=str(error), schema=self.schema)
            raise translated from error
        except Exception:
            intact = True
            raise
        finally:
            await self._release(connection, intact)

    async def _acquire(self, wanted: str) -> _Connection:
        deadline = time.monotonic() + self._acquire_seconds
        if self._slots.locked():
            try:
                async with asyncio.timeout(self._acquire_seconds):
                    await self._slots.acquire()
            except TimeoutError:
                raise Unavailable("All database connections are busy. Try again shortly.") from None
        else:
            await self._slots.acquire()
        try:
            while (connection := self._take(wanted)) is not None:
                if _is_alive(connection):
                    return connection
                self._open -= 1
                await connection.close()
            return await self._connect_until(deadline)
        except BaseException:
            self._slots.release()
            raise

    def _take(self, wanted: str) -> _Connection | None:
        """The last used connection of whom it is for, else any; None where a new one is to be opened."""
        idle = self._idle
        for index in range(len(idle) - 1, -1, -1):
            if idle[index].workspace == wanted:
                return idle.pop(index)
        return idle.pop() if idle and self._open >= _KEPT_APART else None

    async def _connect_until(self, deadline: float) -> _Connection:
        pause = 0.05
        while True:
            if self._closed:
                raise Unavailable("This process has no open database now.")
            try:
                connection = await self.connect()
                self._open += 1
                return connection
            except psycopg.OperationalError as error:
                if time.monotonic() + pause > deadline:
                    log.warning("database can't be reached", error=str(error), schema=self.schema)
                    raise Unavailable("The database can't be reached now. Try again shortly.") from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    async def _release(self, connection: _Connection, intact: bool) -> None:
        try:
            usable = intact and not self._closed and not connection.closed
            if usable and connection.pgconn.transaction_status == pq.TransactionStatus.IDLE:
                self._idle.append(connection)
            else:
                self._open -= 1
                await connection.close()
        finally:
            self._slots.release()


def _single(within: Collection[str] | None) -> str | None:
    """The workspace that the server can be told for platform work, if it is one."""
    return next(iter(within)) if within is not None and len(within) == 1 else None


def _wanted(workspace_id: str | None) -> str:
    """What the server is told for a tenant, or for the platform's own work."""
    if workspace_id is None:
        return EVERY_WORKSPACE
    if workspace_id == EVERY_WORKSPACE:
        raise Internal("The work of a tenant named every workspace.")
    return workspace_id


async def _serve(connection: _Connection, workspace_id: str | None) -> None:
    """Have the server show the rows of this workspace to statements that are transactions of their own."""
    wanted = _wanted(workspace_id)
    if connection.workspace != wanted:
        connection.workspace = None
        with untraced():
            await connection.execute(cast(LiteralString, _setting(wanted)))
        connection.workspace = wanted


@lru_cache(maxsize=1024)
def _setting(workspace: str) -> str:
    quoted = workspace.replace("'", "''")
    return f"SET {SETTING} TO '{quoted}'"


def _is_alive(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether an idle connection can still be used, without a round trip.

    A healthy idle socket has nothing to read. Something readable is a notice, or the news that the server went away.
    """
    pgconn = connection.pgconn
    try:
        for _ in range(4):
            if pgconn.status != pq.ConnStatus.OK:
                return False
            if not _is_readable(pgconn.socket):
                return True
            pgconn.consume_input()
    except psycopg.Error:
        return False
    return False


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _translated(error: psycopg.Error) -> Exception | None:
    """What the error means to a caller; None where it is a fault of the statement itself."""
    state = error.sqlstate or ""
    if state in ("40001", "40P01", "55P03"):
        return WriteConflict("Another request changed the same data at the same time. Try again.")
    if state == "57014":
        return Unavailable("The database took too long. Try again shortly.")
    if state in ("53100", "53200"):
        return Unavailable("The database is out of space or memory.", retry_after_seconds=10.0)
    if state == "25P03" or state[:2] in ("08", "53", "57", "58"):
        return Unavailable("The database can't be reached now. Try again shortly.")
    if not state and isinstance(error, psycopg.OperationalError):
        return Unavailable("The connection to the database was lost. Try again shortly.")
    return None
