"""How a workspace reaches its model: what vault says, kept for a short while, and the provider made from it.

    async with access.use(workspace_id) as model:
        async for delta in model.provider.stream(request): …

An answer of vault is trusted for REFRESH_SECONDS, or until `forget` hears that settings were saved; if vault can't
be reached then, the former answer still serves. One provider per workspace lives as long as the answer's revision, and
is closed when the last request on it has ended.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson

from kit.errors import DomainError
from kit.telemetry import log, register_secret
from managed_agents.vault.v1.vault_pb2 import GetModelAccessResponse
from services.worker.runner.models import registry
from services.worker.runner.models.base import ModelAccess, ModelError, ModelErrorKind, ModelProvider

REFRESH_SECONDS = 15.0

Fetch = Callable[[str], Awaitable[GetModelAccessResponse]]
Create = Callable[[ModelAccess], ModelProvider]


@dataclass(slots=True, eq=False)
class Model:
    """A provider with the access that it was made from."""

    access: ModelAccess
    provider: ModelProvider
    fetched_at: float
    users: int = 0
    retired: bool = False

    def resolve(self, model_id: str) -> str:
        """The vendor's id for what an agent names."""
        return self.access.default_model if model_id in ("", "default") and self.access.default_model else model_id


class ModelAccessCache:
    """Providers of all workspaces that this runner works for."""

    def __init__(self, fetch: Fetch, create: Create = registry.create) -> None:
        self._fetch = fetch
        self._create = create
        self._models: dict[str, Model] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()
        # Grows with each `forget`: an answer that was asked for before is not trusted.
        self._saves = 0

    @asynccontextmanager
    async def use(self, workspace_id: str) -> AsyncIterator[Model]:
        """The workspace's model, kept open inside the block. Raises ModelError where there is none to be had."""
        model = await self._current(workspace_id)
        model.users += 1
        try:
            yield model
        finally:
            model.users -= 1
            self._close_if_done(model)

    async def refresh(self, workspace_id: str, seen_revision: int) -> bool:
        """Ask vault at once, after the vendor refused the key; whether the access is another than the one seen."""
        model = self._models.get(workspace_id)
        if model is not None and model.access.revision == seen_revision:
            model.fetched_at = 0.0
        return (await self._current(workspace_id)).access.revision != seen_revision

    def forget(self, workspace_id: str | None = None) -> None:
        """Ask vault before the next use: the settings of the workspace, or of any, were saved."""
        self._saves += 1
        for known_id, model in self._models.items():
            if workspace_id in (None, known_id):
                model.fetched_at = -REFRESH_SECONDS

    async def close(self) -> None:
        """Close every provider."""
        for model in self._models.values():
            model.retired = True
            self._close_if_done(model)
        self._models.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _current(self, workspace_id: str) -> Model:
        model = self._models.get(workspace_id)
        if model is not None and time.monotonic() - model.fetched_at < REFRESH_SECONDS:
            return model
        async with self._locks.setdefault(workspace_id, asyncio.Lock()):
            model = self._models.get(workspace_id)
            if model is None or time.monotonic() - model.fetched_at >= REFRESH_SECONDS:
                model = await self._refetch(workspace_id, model)
            return model

    async def _refetch(self, workspace_id: str, former: Model | None) -> Model:
        saves = self._saves
        try:
            answer = await self._fetch(workspace_id)
        except DomainError as error:
            if former is not None:
                log.warning("vault can't be asked for model access, going on with the former answer", error=repr(error))
                former.fetched_at = time.monotonic()
                return former
            retryable = error.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "RESOURCE_EXHAUSTED")
            message = f"The model settings of the workspace can't be read: {error.message}"
            raise ModelError(ModelErrorKind.CONNECTION, message, retryable=retryable) from error
        fetched_at = time.monotonic() if saves == self._saves else -REFRESH_SECONDS
        if former is not None and former.access.revision == answer.revision:
            former.fetched_at = fetched_at
            return former
        model = await self._make(answer, fetched_at)
        self._models[workspace_id] = model
        if former is not None:
            former.retired = True
            self._close_if_done(former)
        return model

    async def _make(self, answer: GetModelAccessResponse, fetched_at: float) -> Model:
        register_secret(answer.api_key)
        # On the loop it would keep this process from renewing its leases, and on a busy host for longer than they last.
        await asyncio.to_thread(registry.load, answer.vendor)
        access = ModelAccess(
            vendor=answer.vendor,
            base_url=answer.base_url,
            api_key=answer.api_key,
            default_model=answer.default_model,
            options=orjson.loads(answer.options_json) if answer.options_json else {},
            revision=answer.revision,
        )
        return Model(access, self._create(access), fetched_at)

    def _close_if_done(self, model: Model) -> None:
        if model.retired and model.users == 0:
            task = asyncio.create_task(model.provider.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
