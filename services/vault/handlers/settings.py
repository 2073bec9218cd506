"""SettingsService: the settings document and what runners may open of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from kit.errors import DomainError
from kit.postgres import Database, Tx
from kit.rpc.server import current_context
from kit.telemetry import log, register_secret
from managed_agents.vault.v1 import vault_pb2, vault_pb2_grpc
from services.vault.domain import adapters, candidates
from services.vault.domain import settings as rules
from services.vault.domain.candidates import RESTART_REQUIRED
from services.vault.domain.errors import InvalidSettings, RunnersOnly, SettingsRevisionConflict
from services.vault.domain.keys import DEFAULT_WORKSPACE
from services.vault.domain.sealing import Sealer
from services.vault.domain.settings import Settings
from services.vault.store.settings import SettingsRow, SettingsStore

RUNNER_PREFIX = "runner_"
SESSIONS_PRINCIPAL = "sessions"
_REVISION_BYTES = 7
_ADAPTERS = orjson.dumps(adapters.descriptors())


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The document in effect, and the saved one where that can't be used."""

    revision: int
    effective_revision: int
    settings: Settings
    damaged: Any = None
    fault: DomainError | None = None


class SettingsHandler(vault_pb2_grpc.SettingsServiceServicer):
    """Serves the saved document, or the one that `environ` describes."""

    def __init__(self, database: Database, sealer: Sealer, environ: Mapping[str, str]) -> None:
        self._database = database
        self._sealer = sealer
        self._environ = environ
        self._told_damaged: dict[str, int] = {}

    async def GetSettings(self, request, context) -> vault_pb2.GetSettingsResponse:
        """Reads the document with its secrets masked."""
        return _answer(await self._read())

    async def SaveSettings(self, request, context) -> vault_pb2.SaveSettingsResponse:
        """Replaces the document at the revision that the caller read."""
        async with self._database.transaction(current_context().workspace_id) as tx:
            loaded = await self._load(tx)
            settings = self._judge(request.document_json, loaded)
            await self._save(tx, request.revision, settings)
        for secret in settings.secrets().values():
            register_secret(secret)
        revision = request.revision + 1
        log.info(
            "runtime_settings_saved",
            old_revision=request.revision,
            new_revision=revision,
            changed_paths=candidates.changed_paths(loaded.settings, settings),
            restart_required=RESTART_REQUIRED,
        )
        return vault_pb2.SaveSettingsResponse(
            revision=revision,
            document_json=orjson.dumps(settings.document()),
            settings=_answer(_Loaded(revision, revision, settings)),
        )

    async def ValidateSettings(self, request, context) -> vault_pb2.ValidateSettingsResponse:
        """Judges a document as a save would."""
        loaded = await self._read()
        settings = self._judge(request.document_json, loaded)
        return vault_pb2.ValidateSettingsResponse(
            document_json=orjson.dumps(settings.document()),
            changed_paths=candidates.changed_paths(loaded.settings, settings),
            restart_required=RESTART_REQUIRED,
        )

    async def TestSettings(self, request, context) -> vault_pb2.TestSettingsResponse:
        """Judges one area. That the stored document could be read is itself the test of the database."""
        stored = (await self._read()).settings
        verdict = candidates.judge_area(request.area, _parse_json(request.config_json), stored, self._environ)
        return vault_pb2.TestSettingsResponse(adapter=verdict.adapter, status=verdict.status, message=verdict.message)

    async def GetModelAccess(self, request, context) -> vault_pb2.GetModelAccessResponse:
        """Opens the key of the model vendor, for runners only."""
        if not current_context().principal_id.startswith(RUNNER_PREFIX):
            raise RunnersOnly("Only a runner may open model access.")
        settings = (await self._in_effect()).settings
        model = settings.model
        response = vault_pb2.GetModelAccessResponse(
            vendor=model.vendor,
            base_url=model.base_url,
            api_key="" if model.vendor == "demo" else rules.resolve_reference(model.api_key, self._environ),
            default_model=model.default_model,
            options_json=orjson.dumps({"default_max_steps": settings.engine.default_max_steps}),
        )
        digest = hashlib.sha256(response.SerializeToString(deterministic=True)).digest()
        response.revision = int.from_bytes(digest[:_REVISION_BYTES], "big")
        return response

    async def GetStorageAccess(self, request, context) -> vault_pb2.GetStorageAccessResponse:
        """Opens the secret of the bucket, for the sessions service only."""
        if current_context().principal_id != SESSIONS_PRINCIPAL:
            raise RunnersOnly("Only the sessions service may open storage access.")
        kept = (await self._read()).settings.artifacts.opened(self._environ)
        if kept.provider != "s3":
            return vault_pb2.GetStorageAccessResponse(provider=kept.provider)
        return vault_pb2.GetStorageAccessResponse(
            provider=kept.provider,
            bucket=kept.bucket,
            region=kept.region,
            endpoint=kept.endpoint,
            prefix=kept.prefix,
            access_key_id=kept.access_key_id,
            secret_access_key=kept.secret_access_key,
        )

    async def GetLoopEngine(self, request, context) -> vault_pb2.GetLoopEngineResponse:
        """Tells the engine of sessions that name none, for the sessions service only."""
        if current_context().principal_id != SESSIONS_PRINCIPAL:
            raise RunnersOnly("Only the sessions service may ask for the loop engine.")
        engine = (await self._in_effect()).settings.engine
        options = orjson.dumps(dict(engine.http)) if engine.http else b""
        return vault_pb2.GetLoopEngineResponse(provider=engine.provider, options_json=options)

    def _judge(self, document_json: bytes, loaded: _Loaded) -> Settings:
        return candidates.judge(_parse_json(document_json), loaded.settings, self._environ)

    async def _read(self) -> _Loaded:
        async with self._database.read(current_context().workspace_id) as tx:
            return await self._load(tx)

    async def _in_effect(self) -> _Loaded:
        """What runners go by: what the operator saved holds for every workspace that has nothing of its own."""
        loaded = await self._read()
        if loaded.revision or current_context().workspace_id == DEFAULT_WORKSPACE:
            return loaded
        async with self._database.read(DEFAULT_WORKSPACE) as tx:
            return await self._load(tx)

    async def _load(self, tx: Tx) -> _Loaded:
        store = SettingsStore(tx)
        row = await store.load()
        if row is None:
            return _Loaded(0, 0, rules.from_environment(self._environ))
        try:
            return _Loaded(row.revision, row.revision, await self._open(tx, row))
        except DomainError as fault:
            former = await store.load_effective()
            if former is None:
                raise
            self._tell_damaged(tx.workspace_id, row.revision, fault)
            return _Loaded(row.revision, former.revision, await self._open(tx, former), row.document, fault)

    async def _open(self, tx: Tx, row: SettingsRow) -> Settings:
        secrets = orjson.loads(await self._sealer.open(row.secrets, associated=_identity(tx)))
        return rules.reopen(row.document, secrets)

    def _tell_damaged(self, workspace_id: str, revision: int, fault: DomainError) -> None:
        if self._told_damaged.get(workspace_id) != revision:
            self._told_damaged[workspace_id] = revision
            log.error("the saved settings can't be used, the former ones stay in effect", reason=fault.reason)

    async def _save(self, tx: Tx, revision: int, settings: Settings) -> None:
        sealed = await self._sealer.seal(orjson.dumps(settings.secrets()), associated=_identity(tx))
        store = SettingsStore(tx)
        document = settings.document()
        saved = await (store.replace(revision, document, sealed) if revision else store.insert(document, sealed))
        if not saved:
            raise SettingsRevisionConflict(
                f"The settings are no longer at revision {revision}. Read them again and repeat the change."
            )
        await store.put_in_effect(revision + 1, document, sealed)


def _answer(loaded: _Loaded) -> vault_pb2.GetSettingsResponse:
    shown = orjson.dumps(loaded.settings.document())
    return vault_pb2.GetSettingsResponse(
        revision=loaded.revision,
        document_json=shown,
        secret_states_json=orjson.dumps(loaded.settings.secret_states()),
        effective_revision=loaded.effective_revision,
        # Whatever was written there from outside: numbers too, that orjson does not know.
        saved_document_json=shown if loaded.fault is None else json.dumps(candidates.masked(loaded.damaged)).encode(),
        restart_required=RESTART_REQUIRED,
        activation_status="active" if loaded.fault is None else "failed",
        activation_errors_json=orjson.dumps(_errors(loaded.fault)),
        adapters_json=_ADAPTERS,
    )


def _errors(fault: DomainError | None) -> list[dict[str, str]]:
    if fault is None:
        return []
    if details := fault.metadata.get("details"):
        return orjson.loads(details)["errors"]
    return [{"path": "", "message": str(fault.message)}]


def _identity(tx: Tx) -> str:
    return f"settings:{tx.workspace_id}"


def _parse_json(document: bytes) -> Any:
    try:
        return orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise InvalidSettings(f"The document is not JSON: {error}.") from error
