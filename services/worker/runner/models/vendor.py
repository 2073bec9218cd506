"""A provider of a vendor, whatever its protocol: the SDK gives address, headers and models, `endpoint` asks.

Requests go out by `endpoint` and answers are read by `wire`, for the reasons given there. Nothing is tried twice here:
the loop retries, where users can see it. A protocol says how it asks and how its answer is read, and what its refusals
stand for.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import httpx2

from services.worker.runner.models.base import (
    ModelDelta,
    ModelError,
    ModelErrorKind,
    ModelInfo,
    ModelRequest,
    error_from_status,
)
from services.worker.runner.models.endpoint import CONNECT_SECONDS, SILENCE_SECONDS, Endpoint
from services.worker.runner.models.wire import error_message, retry_after_seconds

# For the SDKs, which make an attempt of their own otherwise.
CLIENT_OPTIONS: dict[str, Any] = {
    "max_retries": 0,
    "timeout": httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
}
# How vendors and the servers that speak their protocols say that a context is longer than the model takes.
_TOO_LONG = re.compile(
    r"prompt is too long|input is too long|exceeds? (the )?context|maximum context length"
    r"|context[ _](window|length|size|limit)",
    re.I,
)


class VendorModel(ABC):
    """One vendor, or whoever speaks its protocol."""

    # The module of the SDK, for its errors: both official ones name them alike.
    sdk: Any

    def __init__(self, client: Any, path: str, headers: Mapping[str, object]) -> None:
        self._client = client
        self._endpoint = Endpoint(f"{str(client.base_url).rstrip('/')}{path}", headers, self.refused)

    @abstractmethod
    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The request in the vendor's form."""

    @abstractmethod
    def read(self, request: ModelRequest, frames: AsyncIterator[dict[str, Any]]) -> AsyncGenerator[ModelDelta]:
        """What the frames of an answer say, ending with Stop. Raises ModelError."""

    @abstractmethod
    async def models(self) -> list[ModelInfo]:
        """The vendor's models, newest first. Raises errors of the SDK."""

    def headers(self, request: ModelRequest) -> Mapping[str, str] | None:
        """Headers of this request alone."""
        return None

    @staticmethod
    def refused(status: int, message: str, body: Any, headers: Mapping[str, str]) -> ModelError:
        """What an error answer stands for; `body` is all of it."""
        if status in (400, 413, 422) and says_too_long(message, body):
            return ModelError(ModelErrorKind.TOO_LONG, message, status=status)
        return error_from_status(status, message, retry_after_seconds=retry_after_seconds(headers))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelDelta]:
        """Asks, and yields what comes until Stop. Raises ModelError."""
        body = self.body(request) | {"stream": True}
        try:
            async with (
                aclosing(self._endpoint.frames(body, self.headers(request))) as frames,
                aclosing(self.read(request, frames)) as deltas,
            ):
                async for delta in deltas:
                    yield delta
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelError(ModelErrorKind.SERVER, "The model vendor sent a frame of an unknown form.") from error

    async def list_models(self) -> list[ModelInfo]:
        """The vendor's models, newest first. Raises ModelError."""
        try:
            return await self.models()
        except self.sdk.APIError as error:
            raise self._translated(error) from error

    async def close(self) -> None:
        """Gives the connections back."""
        await self._endpoint.close()
        await self._client.close()

    def _translated(self, error: Any) -> ModelError:
        if isinstance(error, self.sdk.APITimeoutError) and not isinstance(error.__cause__, httpx2.ConnectTimeout):
            return ModelError(ModelErrorKind.TIMEOUT, "The model vendor did not answer in time.")
        if not isinstance(error, self.sdk.APIStatusError):
            return ModelError(ModelErrorKind.CONNECTION, "The model vendor can't be reached.")
        # One SDK gives the whole body, the other what lies under its `error`.
        body = error.body if isinstance(error.body, Mapping) and "error" in error.body else {"error": error.body}
        message = error_message(body, error.message)
        return self.refused(error.status_code, message, body, error.response.headers)


def broke_off() -> ModelError:
    """The answer ended before its end."""
    return ModelError(ModelErrorKind.CONNECTION, "The model vendor's answer broke off.")


def says_too_long(message: object, body: object) -> bool:
    """Whether an error is about the length of the context, by its code or its words."""
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    names = [inner.get("code"), inner.get("type")] if isinstance(inner, Mapping) else []
    return any(isinstance(text, str) and _TOO_LONG.search(text) for text in (message, *names))


def reported(kind: ModelErrorKind, message: object, body: object = None) -> ModelError:
    """The vendor tells of an error in the middle of its answer."""
    if kind in (ModelErrorKind.INVALID_REQUEST, ModelErrorKind.SERVER) and says_too_long(message, body):
        kind = ModelErrorKind.TOO_LONG
    return ModelError(kind, str(message or "The model vendor reported an error.")[:2000])
