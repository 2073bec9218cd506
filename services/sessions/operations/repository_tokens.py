"""Tokens of repositories: handed to vault, which keeps them sealed, and dropped there when nothing needs them.

A token goes to vault before the session that needs it is committed, so that no session is without its token. One
whose session never came to be, or is gone, is dropped at once, or by the sweep where that was not possible.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kit.errors import DomainError
from kit.rpc.client import Channel
from kit.rpc.context import CallContext, use_context
from kit.telemetry import log
from managed_agents.vault.v1.repository_secrets_pb2 import (
    DropRepositoryTokensRequest,
    ListRepositoryTokensRequest,
    PutRepositoryTokenRequest,
)
from managed_agents.vault.v1.repository_secrets_pb2_grpc import RepositorySecretsServiceStub
from services.sessions.domain.session_errors import UnsupportedCapability

_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose token is kept."""

    workspace_id: str
    session_id: str
    resource_id: str


class RepositoryTokens:
    """The tokens of this installation's repositories, without ever reading one."""

    def __init__(self, vault: Channel | None) -> None:
        self._vault = None if vault is None else vault.stub(RepositorySecretsServiceStub)

    async def put(self, session_id: str, tokens: Mapping[str, str]) -> None:
        """Have tokens kept, by resource id."""
        if not tokens:
            return
        if self._vault is None:
            raise UnsupportedCapability("A token of a repository can't be kept: this installation has no vault.")
        for resource_id, token in tokens.items():
            request = PutRepositoryTokenRequest(resource_id=resource_id, session_id=session_id, token=token)
            await self._vault.PutRepositoryToken(request, timeout_seconds=_SECONDS, retry=True)

    async def page(self, after_id: str, older_than_seconds: int, limit: int) -> list["Owner"]:
        """Whose tokens are kept, of every workspace, in the order of resource ids."""
        if self._vault is None:
            return []
        request = ListRepositoryTokensRequest(
            after_resource_id=after_id, older_than_seconds=older_than_seconds, limit=limit
        )
        with use_context(CallContext(principal_id="sessions")):
            answer = await self._vault.ListRepositoryTokens(request, retry=True)
        return [Owner(each.workspace_id, each.session_id, each.resource_id) for each in answer.owners]

    @asynccontextmanager
    async def until_committed(self) -> AsyncIterator["Keeping"]:
        """Around a transaction: what was put within it is dropped where it fails."""
        keeping = Keeping(self)
        try:
            yield keeping
        except BaseException:
            await self.drop(keeping.resource_ids)
            raise

    async def drop(self, resource_ids: Sequence[str]) -> None:
        """Let go of tokens, as far as vault can be reached."""
        if not resource_ids or self._vault is None:
            return
        try:
            request = DropRepositoryTokensRequest(resource_ids=resource_ids)
            await self._vault.DropRepositoryTokens(request, timeout_seconds=_SECONDS, retry=True)
        except DomainError as refused:
            log.warning("tokens of repositories were not dropped", resource_ids=list(resource_ids), error=repr(refused))


class Keeping:
    """Tokens that were put within one transaction."""

    def __init__(self, tokens: RepositoryTokens) -> None:
        self._tokens = tokens
        self.resource_ids: list[str] = []

    async def put(self, session_id: str, tokens: Mapping[str, str]) -> None:
        """Have tokens kept, by resource id."""
        self.resource_ids += tokens
        await self._tokens.put(session_id, tokens)
