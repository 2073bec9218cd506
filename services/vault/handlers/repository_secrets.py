"""RepositorySecretsService: tokens of attached repositories, sealed; opened for the runner that clones."""

from __future__ import annotations

from kit.postgres import Database
from kit.rpc.server import current_context
from kit.telemetry import register_secret
from managed_agents.vault.v1 import repository_secrets_pb2 as pb
from managed_agents.vault.v1 import repository_secrets_pb2_grpc
from services.vault.domain.errors import RepositoryTokenNotFound, RunnersOnly
from services.vault.domain.sealing import Sealer
from services.vault.handlers.settings import RUNNER_PREFIX
from services.vault.store.repository_tokens import RepositoryTokenStore, row_identity

MAX_PAGE = 1_000


class RepositorySecretsHandler(repository_secrets_pb2_grpc.RepositorySecretsServiceServicer):
    """Serves the tokens."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    async def PutRepositoryToken(self, request, context) -> pb.PutRepositoryTokenResponse:
        """Seals a token, bound to the resource and its session."""
        register_secret(request.token)
        workspace_id = current_context().workspace_id
        identity = row_identity(workspace_id, request.session_id, request.resource_id)
        sealed = await self._sealer.seal(request.token.encode(), associated=identity)
        async with self._database.transaction(workspace_id) as tx:
            await RepositoryTokenStore(tx).put(request.resource_id, request.session_id, sealed)
        return pb.PutRepositoryTokenResponse()

    async def OpenRepositoryToken(self, request, context) -> pb.OpenRepositoryTokenResponse:
        """Opens a token, for runners only."""
        call = current_context()
        if not call.principal_id.startswith(RUNNER_PREFIX):
            raise RunnersOnly("Only a runner may open the token of a repository.")
        async with self._database.read(call.workspace_id) as tx:
            sealed = await RepositoryTokenStore(tx).find(request.resource_id, request.session_id)
        if sealed is None:
            raise RepositoryTokenNotFound("No token is kept for this repository.", resource_id=request.resource_id)
        identity = row_identity(call.workspace_id, request.session_id, request.resource_id)
        token = (await self._sealer.open(sealed, associated=identity)).decode()
        register_secret(token)
        return pb.OpenRepositoryTokenResponse(token=token)

    async def DropRepositoryTokens(self, request, context) -> pb.DropRepositoryTokensResponse:
        """Deletes tokens; unknown ids are fine."""
        async with self._database.transaction(current_context().workspace_id) as tx:
            await RepositoryTokenStore(tx).drop(request.resource_ids)
        return pb.DropRepositoryTokensResponse()

    async def ListRepositoryTokens(self, request, context) -> pb.ListRepositoryTokensResponse:
        """Whose tokens are kept, without any of them."""
        limit = min(request.limit or MAX_PAGE, MAX_PAGE)
        async with self._database.platform_read() as tx:
            owners = await RepositoryTokenStore(tx).page(request.after_resource_id, request.older_than_seconds, limit)
        return pb.ListRepositoryTokensResponse(
            owners=[
                pb.RepositoryTokenOwner(workspace_id=each.workspace_id, session_id=each.session_id, resource_id=each.id)
                for each in owners
            ]
        )
