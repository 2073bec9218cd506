"""Where the tools of a self-hosted session run: on a machine of the operator, one item of work after another."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.models.base import ToolDefinition
from services.worker.runner.outside.items import MOST_ITEMS_OF_A_CALL, Item, Result, WorkFailed, WorkQueue, item_id
from services.worker.runner.outside.tools import BASH_DESCRIPTION, run_tool
from services.worker.tools import TOOL_SPECS, ShellUnavailable, ToolOutcome, limit_text

PROVIDER = "self_hosted"
NOTE = (
    "Your tools run on a machine of the operator, in its work folder, where other sessions may work too. Relative paths"
    " start there, and nothing outside of it can be reached."
)
_OVERFLOW_FOLDER = ".managed-agents/tool_outputs"

# Writes an event of a turn.
Write = Callable[[str, Mapping[str, Any]], object]
# The fields of a session.error of this type with this message.
ErrorFields = Callable[[str, str], Mapping[str, Any]]


def can_be_joined(name: str) -> bool:
    """Whether a call of a tool comes to the same items when it is made again.

    An edit does not: it reads first, and would write what it makes of that long after.
    """
    return name in TOOL_SPECS and name != "edit"


def is_self_hosted(grant: TurnGrant) -> bool:
    """Whether the session of a turn has its tools run by workers, in either protocol."""
    return b'"sandbox_provider":"self_hosted"' in grant.environment_json


class OutsideWork:
    """The self-hosted sessions of a runner."""

    def __init__(self, queue: WorkQueue) -> None:
        self.queue = queue
        self._stopping: set[asyncio.Task[None]] = set()

    def of(
        self, grant: TurnGrant, write: Write, error_fields: ErrorFields, check: Callable[[], None]
    ) -> "OutsideSandbox":
        """Where the tools of a turn run; `check` raises where the turn is not held any more."""
        return OutsideSandbox(self, grant, write, error_fields, check)

    def stop(self, session_id: str, item_ids: Sequence[str]) -> None:
        """Have items stopped, in a task of its own: whoever asks has no time to wait."""
        task = asyncio.create_task(self.queue.stop(session_id, item_ids), name=f"stop work of {session_id}")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def aclose(self) -> None:
        """Wait for what is being stopped."""
        await asyncio.gather(*self._stopping, return_exceptions=True)


class OutsideSandbox:
    """For one turn; calls run one after another."""

    def __init__(
        self,
        shared: OutsideWork,
        grant: TurnGrant,
        write: Write,
        error_fields: ErrorFields,
        check: Callable[[], None],
    ) -> None:
        self._shared = shared
        # Threads work in their session.
        self._session_id = grant.root_session_id or grant.session.id
        self._environment_id = grant.session.environment_id
        self._write = write
        self._error_fields = error_fields
        self._check = check
        self._call_id = ""
        self._count = 0
        self._waiting: list[str] = []

    def begin(self, call_id: str) -> None:
        """The call that runs next, by its event: its items are named after it."""
        self._call_id, self._count = call_id, 0

    def give_up(self, call_ids: Sequence[str]) -> None:
        """Calls that an earlier attempt left behind: what was not begun of them is not to begin any more."""
        numbers = range(MOST_ITEMS_OF_A_CALL)
        if items := [item_id(call_id, number) for call_id in call_ids for number in numbers]:
            self._shared.stop(self._session_id, items)

    async def run_tool(self, name: str, value: object) -> ToolOutcome:
        """Run one tool to its end."""
        try:
            return await run_tool(name, value, self._do, self._spill_path())
        except WorkFailed as failed:
            self._write("session.error", self._error_fields(failed.code, failed.message))
            return ToolOutcome(str(failed), is_error=True)

    def limit_output(self, text: str, *, is_error: bool = False) -> ToolOutcome:
        """Apply the contract for output that is too long; what was made here has no file on the worker's machine."""
        return limit_text(text, None, is_error=is_error)

    def interrupt(self) -> bool:
        """Stop what a worker does for this turn: it hears of that with its next heartbeat."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._shared.stop(self._session_id, waiting)
        return bool(waiting)

    async def start_program(self, argv: Sequence[str], env: Mapping[str, str], line_bytes: int) -> NoReturn:
        """Workers hold no programs."""
        raise ShellUnavailable("workers of a self-hosted environment hold no programs")

    async def _do(self, kind: str, payload: Mapping[str, Any], run_seconds: float) -> Result:
        item = Item(item_id(self._call_id, self._count), self._session_id, self._environment_id, kind, payload)
        self._count += 1
        self._waiting.append(item.id)
        try:
            result = await self._shared.queue.run(item, run_seconds=run_seconds, check=self._check)
        except asyncio.CancelledError:
            # It stays noted: it is to be stopped.
            raise
        except Exception:
            self._waiting.remove(item.id)
            raise
        self._waiting.remove(item.id)
        return result

    def _spill_path(self) -> str:
        return f"{_OVERFLOW_FOLDER}/{self._session_id}-{item_id(self._call_id, 0)[-10:].lower()}.txt"


def described(built_in: Mapping[str, ToolDefinition]) -> dict[str, ToolDefinition]:
    """The built-in tools, as a model is told of them where workers run them."""
    found = dict(built_in)
    if "bash" in found:
        found["bash"] = replace(found["bash"], description=BASH_DESCRIPTION)
    return found
