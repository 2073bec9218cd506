"""Single reads that share statements.

A read that finds no other under way goes at once. Those that come meanwhile wait for it and then go together, as one
statement, so that a busy process asks its database less often. A read never takes the answer of a statement that began
before it was asked for, so each caller sees whatever was committed before its call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from kit.postgres import Database, Tx

Row = TypeVar("Row")
Waiting = dict[str, list[asyncio.Future[Row | None]]]

MAX_KEYS = 200


class SharedReads(Generic[Row]):
    """Reads of rows by id, each within its workspace."""

    def __init__(self, database: Database, load: Callable[[Tx, list[str]], Awaitable[Mapping[str, Row]]]) -> None:
        """`load` answers with those of the ids that the workspace has."""
        self._database = database
        self._load = load
        # Workspaces with a statement under way, and who waits for its end.
        self._waiting: dict[str, Waiting[Row]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, workspace_id: str, key: str) -> Row | None:
        """The row, or None where the workspace has none of this id."""
        waiting = self._waiting.get(workspace_id)
        if waiting is None:
            self._waiting[workspace_id] = {}
            try:
                return (await self._read(workspace_id, [key])).get(key)
            finally:
                self._go_on(workspace_id)
        answer: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        waiting.setdefault(key, []).append(answer)
        return await answer

    async def _read(self, workspace_id: str, keys: list[str]) -> Mapping[str, Row]:
        async with self._database.read(workspace_id) as tx:
            return await self._load(tx, keys)

    def _go_on(self, workspace_id: str) -> None:
        if not self._waiting[workspace_id]:
            del self._waiting[workspace_id]
            return
        task = asyncio.create_task(self._serve(workspace_id), name="shared reads")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, workspace_id: str) -> None:
        waiting = self._waiting[workspace_id]
        keys = list(waiting)[:MAX_KEYS]
        taken = {key: waiting.pop(key) for key in keys}
        try:
            found = await self._read(workspace_id, keys)
        except Exception as failed:
            # Bound by a name that outlives the clause.
            error = failed
            _tell(taken, lambda answer, _key: answer.set_exception(error))
        else:
            _tell(taken, lambda answer, key: answer.set_result(found.get(key)))
        finally:
            _tell(taken, lambda answer, _key: answer.cancel())
            self._go_on(workspace_id)


def _tell(taken: Waiting[Row], tell: Callable[[asyncio.Future[Row | None], str], object]) -> None:
    for key, answers in taken.items():
        for answer in answers:
            if not answer.done():
                tell(answer, key)
