"""SettingsService: the settings document and what runners may open of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import orjson

from kit.postgres import Database, Tx
from kit.rpc.server import current_context
from managed_agents.vault.v1 import vault_pb2, vault_pb2_grpc
from services.vault.domain import settings as rules
from services.vault.domain.errors import RunnersOnly, SettingsRevisionConflict
from services.vault.domain.sealing import Sealer
from services.vault.domain.settings import Settings
from services.vault.store.settings import SettingsStore

RUNNER_PREFIX = "runner_"
_REVISION_BYTES = 7


class SettingsHandler(vault_pb2_grpc.SettingsServiceServicer):
    """Serves the saved document, or the one that `environ` describes."""

    def __init__(self, database: Database, sealer: Sealer, environ: Mapping[str, str]) -> None:
        self._database = database
        self._sealer = sealer
        self._environ = environ

    async def GetSettings(self, request, context) -> vault_pb2.GetSettingsResponse:
        """Reads the document with its secrets masked."""
        async with self._database.read(current_context().workspace_id) as tx:
            revision, settings = await self._load(tx)
        return vault_pb2.GetSettingsResponse(
            revision=revision,
            document_json=orjson.dumps(settings.document()),
            secret_states_json=orjson.dumps(settings.secret_states()),
        )

    async def SaveSettings(self, request, context) -> vault_pb2.SaveSettingsResponse:
        """Replaces the document at the revision that the caller read."""
        async with self._database.transaction(current_context().workspace_id) as tx:
            _, stored = await self._load(tx)
            settings = rules.parse(_parse_json(request.document_json), stored_api_key=stored.model.api_key)
            await self._save(tx, request.revision, settings)
        return vault_pb2.SaveSettingsResponse(
            revision=request.revision + 1, document_json=orjson.dumps(settings.document())
        )

    async def GetModelAccess(self, request, context) -> vault_pb2.GetModelAccessResponse:
        """Opens the key of the model vendor, for runners only."""
        caller = current_context()
        if not caller.principal_id.startswith(RUNNER_PREFIX):
            raise RunnersOnly("Only a runner may open model access.")
        async with self._database.read(caller.workspace_id) as tx:
            _, settings = await self._load(tx)
        response = vault_pb2.GetModelAccessResponse(
            vendor=settings.model.vendor,
            base_url=settings.model.base_url,
            api_key=rules.resolve_reference(settings.model.api_key, self._environ),
            default_model=settings.model.default_model,
            options_json=orjson.dumps({"default_max_steps": settings.default_max_steps}),
        )
        digest = hashlib.sha256(response.SerializeToString(deterministic=True)).digest()
        response.revision = int.from_bytes(digest[:_REVISION_BYTES], "big")
        return response

    async def _load(self, tx: Tx) -> tuple[int, Settings]:
        row = await SettingsStore(tx).load()
        if row is None:
            return 0, rules.from_environment(self._environ)
        secrets = orjson.loads(self._sealer.open(row.secrets, associated=_identity(tx)))
        return row.revision, rules.parse(row.document, stored_api_key=secrets["api_key"])

    async def _save(self, tx: Tx, revision: int, settings: Settings) -> None:
        sealed = self._sealer.seal(orjson.dumps({"api_key": settings.model.api_key}), associated=_identity(tx))
        store = SettingsStore(tx)
        document = settings.document()
        saved = await (store.replace(revision, document, sealed) if revision else store.insert(document, sealed))
        if not saved:
            raise SettingsRevisionConflict(
                f"The settings are no longer at revision {revision}. Read them again and repeat the change."
            )


def _identity(tx: Tx) -> str:
    return f"settings:{tx.workspace_id}"


def _parse_json(document: bytes) -> object:
    try:
        return orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise rules.InvalidSettings(f"The document is not JSON: {error}.") from error
