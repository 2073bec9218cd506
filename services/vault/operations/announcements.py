"""What the vault tells others.

Events of vaults and credentials leave through the outbox on `vault.events.<workspace_id>`,
at least once and with their id. That a secret was replaced is besides a hint on
`vault.rotated.<workspace_id>`: runners that hold a connection with it connect anew.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

import orjson
from nats.aio.msg import Msg

from kit import outbox
from kit.clock import rfc3339
from kit.ids import new_id
from kit.nats import Nats
from kit.outbox import Relay
from kit.postgres import Tx
from kit.telemetry import log
from kit.waiting import within

STREAM = "VAULT"
SUBJECTS = "vault.events.>"
# How long a runner may take to say that it has something to do, and to have done it.
FIRST_ANSWER_SECONDS = 0.2
ANSWER_SECONDS = 6.0


class Announcements:
    """The way to the bus; without one, events wait in their table."""

    def __init__(self, nats: Nats | None = None, relay: Relay | None = None) -> None:
        self._nats = nats
        self._relay = relay

    async def event(self, tx: Tx, kind: str, resource_id: str, now: datetime, *, vault_id: str = "") -> None:
        """Writes an event that leaves with the transaction; call `sent` after the commit."""
        event_id = new_id("vevt")
        data = {"type": kind, "id": resource_id, "workspace_id": tx.workspace_id}
        if vault_id:
            data["vault_id"] = vault_id
        await outbox.add(
            tx,
            message_id=event_id,
            subject=f"vault.events.{tx.workspace_id}",
            payload=orjson.dumps({"type": "event", "id": event_id, "created_at": rfc3339(now), "data": data}),
        )

    def sent(self) -> None:
        """Events were committed."""
        if self._relay is not None:
            self._relay.wake()

    async def rotated(self, workspace_id: str, vault_id: str, credential_id: str = "") -> None:
        """Tells runners that connections with this vault's secrets are to be made anew. A hint: it may be lost."""
        if self._nats is not None:
            await self._nats.publish(_subject(workspace_id), _hint(vault_id, credential_id))

    async def reconnected(self, workspace_id: str, vault_id: str, credential_id: str) -> list[str]:
        """The same, and what did not come back: a sentence for each MCP server of a live session.

        Runners that have such sessions say so at once, and are then waited for; where none
        listens the bus says so itself.
        """
        if self._nats is None or not self._nats.connected:
            return []
        answers: asyncio.Queue[Msg] = asyncio.Queue()
        inbox = self._nats.client.new_inbox()
        try:
            subscription = await self._nats.subscribe(inbox, answers.put)
            try:
                hint = _hint(vault_id, credential_id)
                await self._nats.client.publish(_subject(workspace_id), hint, reply=inbox)
                return await _gather(answers)
            finally:
                await subscription.unsubscribe()
        except Exception as lost:
            log.warning("nobody told how a rotation went", error=repr(lost))
            return []


async def _gather(answers: asyncio.Queue[Msg]) -> list[str]:
    """What runners answer, until each that has something to do is done."""
    waiting: set[str] = set()
    failed: list[str] = []
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        left = deadline - time.monotonic() if waiting else FIRST_ANSWER_SECONDS
        try:
            message = await within(answers.get(), max(left, 0))
        except TimeoutError:
            return [
                *failed,
                *(f"The runner {runner} did not tell whether its sessions are back." for runner in waiting),
            ]
        if message.headers and message.headers.get("Status") == "503":
            return failed
        told = orjson.loads(message.data)
        if "failed" in told:
            waiting.discard(told["runner_id"])
            failed += [
                f"Session {each['session_id']} did not come back to its MCP server {each['server']}: {each['error']}"
                for each in told["failed"]
            ]
        elif told.get("sessions"):
            waiting.add(told["runner_id"])


def _subject(workspace_id: str) -> str:
    return f"vault.rotated.{workspace_id}"


def _hint(vault_id: str, credential_id: str) -> bytes:
    return orjson.dumps({"vault_id": vault_id, "credential_id": credential_id})
