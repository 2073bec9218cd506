"""Lets go of tokens that no session needs: of sessions that ended or were deleted, or that never came to be.

A creation that was cut off after its token went to vault leaves one that no session names. Everything that vault keeps
for longer than a creation can take is held against the sessions that may still use it; all replicas may do so at once.
"""

import asyncio

from kit.errors import DomainError
from kit.postgres import Database
from kit.rpc.context import CallContext, use_context
from kit.telemetry import log
from services.sessions.operations.repository_tokens import Owner, RepositoryTokens
from services.sessions.store.resources import ResourceStore

SWEEP_SECONDS = 900.0
# Longer than any creation of a session takes from its first to its last step.
GRACE_SECONDS = 3_600
_PAGE = 500


class TokenSweep:
    """Sweeps what vault keeps for this database's sessions."""

    def __init__(self, database: Database, tokens: RepositoryTokens, *, grace_seconds: int = GRACE_SECONDS) -> None:
        self._database = database
        self._tokens = tokens
        self._grace_seconds = grace_seconds

    async def run(self) -> None:
        """Sweep for ever; what fails is made good by the next time."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except DomainError as failed:
                log.warning("tokens of repositories were not swept", error=repr(failed))

    async def sweep(self) -> int:
        """One pass; how many tokens were let go of."""
        dropped, after_id = 0, ""
        while owners := await self._tokens.page(after_id, self._grace_seconds, _PAGE):
            after_id = owners[-1].resource_id
            async with self._database.platform_read() as tx:
                needed = await ResourceStore(tx).that_may_run([each.session_id for each in owners])
            unused: dict[str, list[str]] = {}
            for owner in owners:
                if not _is_needed(owner, needed):
                    unused.setdefault(owner.workspace_id, []).append(owner.resource_id)
            for workspace_id, resource_ids in unused.items():
                with use_context(CallContext(workspace_id=workspace_id, principal_id="sessions")):
                    await self._tokens.drop(resource_ids)
                dropped += len(resource_ids)
        if dropped:
            log.info("tokens of repositories that no session needs are gone", count=dropped)
        return dropped


def _is_needed(owner: Owner, needed: dict[tuple[str, str], str]) -> bool:
    # Ids are long and random: one that stands in the text is one of the resources.
    return f'"{owner.resource_id}"' in needed.get((owner.workspace_id, owner.session_id), "")
