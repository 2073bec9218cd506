"""The Messages API, as its official SDK speaks it.

Streams with tools and thinking, marks the prompt for the vendor's cache, and sends system messages in the middle of a
conversation as turns of their own.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

import anthropic
import orjson

from services.worker.runner.models.base import (
    Message,
    ModelAccess,
    ModelDelta,
    ModelError,
    ModelErrorKind,
    ModelInfo,
    ModelRequest,
    Stop,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    TokenUsage,
    UsageReport,
)
from services.worker.runner.models.endpoint import CONNECT_SECONDS
from services.worker.runner.models.vendor import CLIENT_OPTIONS, VendorModel, broke_off, reported
from services.worker.runner.models.wire import tool_call

DEFAULT_MAX_TOKENS = 16_000
FAST_MODE_BETA = "fast-mode-2026-02-01"
_CACHED = {"type": "ephemeral"}
# Families that decide by themselves how much to think.
_ADAPTIVE = re.compile(r"claude-(opus|sonnet|fable)-(4-[6-9]|[5-9])")
_STOPS = {
    "tool_use": StopReason.TOOL_USE,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "refusal": StopReason.REFUSAL,
}
_STREAM_ERRORS = {
    "overloaded_error": ModelErrorKind.OVERLOADED,
    "rate_limit_error": ModelErrorKind.RATE_LIMITED,
    "timeout_error": ModelErrorKind.TIMEOUT,
    "api_error": ModelErrorKind.SERVER,
    "authentication_error": ModelErrorKind.AUTHENTICATION,
    "permission_error": ModelErrorKind.AUTHENTICATION,
    "billing_error": ModelErrorKind.BILLING,
    "not_found_error": ModelErrorKind.NOT_FOUND,
    "invalid_request_error": ModelErrorKind.INVALID_REQUEST,
}


class AnthropicModel(VendorModel):
    """The vendor `anthropic`, or whoever speaks its protocol at `base_url`."""

    sdk = anthropic

    def __init__(self, access: ModelAccess) -> None:
        client = anthropic.AsyncAnthropic(
            api_key=access.api_key or "none",
            base_url=access.base_url or "https://api.anthropic.com",
            **CLIENT_OPTIONS,
        )
        super().__init__(client, "/v1/messages", client.default_headers)

    def headers(self, request: ModelRequest) -> Mapping[str, str] | None:
        """The mark of fast mode, where it is asked for."""
        return {"anthropic-beta": FAST_MODE_BETA} if request.speed == "fast" else None

    def read(self, request: ModelRequest, frames: AsyncIterator[dict[str, Any]]) -> AsyncGenerator[ModelDelta]:
        """The events of one answer."""
        return _Answer(request).read(frames)

    async def models(self) -> list[ModelInfo]:
        """As the vendor lists them."""
        page = await self._client.models.list(limit=100, timeout=CONNECT_SECONDS)
        return [
            ModelInfo(
                id=model.id,
                display_name=model.display_name,
                created_at=model.created_at.isoformat().replace("+00:00", "Z"),
                max_input_tokens=model.max_input_tokens or 0,
                max_output_tokens=model.max_tokens or 0,
            )
            for model in page.data
        ]

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """One request with its conversation, marked for the vendor's cache."""
        body: dict[str, Any] = {
            "model": request.model_id,
            "max_tokens": request.max_tokens or DEFAULT_MAX_TOKENS,
            "messages": _render(request.messages),
            "cache_control": _CACHED,
        }
        if request.system:
            body["system"] = [{"type": "text", "text": request.system, "cache_control": _CACHED}]
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
                for tool in request.tools
            ]
        if _ADAPTIVE.match(request.model_id):
            body["thinking"] = {"type": "adaptive"}
        if request.speed == "fast":
            body["speed"] = "fast"
        return body


def _render(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The vendor takes a system message after a user's alone; one that follows none is sent as a user's."""
    rendered = list(map(_rendered, messages))
    for at, message in enumerate(rendered):
        if message["role"] == "system" and (not at or rendered[at - 1]["role"] != "user"):
            rendered[at] = {**message, "role": "user"}
    return rendered


def _rendered(message: Message) -> dict[str, Any]:
    rendered = message.rendered.get("anthropic")
    if rendered is None:
        content = [*message.reasoning, *message.content]
        rendered = message.rendered["anthropic"] = {"role": message.role, "content": content}
    return rendered


class _Answer:
    """One answer while it streams in."""

    def __init__(self, request: ModelRequest) -> None:
        self._model_id = request.model_id
        self._usage: dict[str, Any] = {}
        self._block: dict[str, Any] = {}
        self._pieces: list[str] = []

    async def read(self, frames: AsyncIterator[dict[str, Any]]) -> AsyncGenerator[ModelDelta]:
        stop: Stop | None = None
        async for frame in frames:
            kind = frame.get("type")
            if kind == "error":
                raise _stream_error(frame.get("error") or {})
            if kind == "message_delta":
                stop = self._stop(frame["delta"])
            if (delta := self._told(kind, frame)) is not None:
                yield delta
        if stop is None:
            raise broke_off()
        yield stop

    def _told(self, kind: object, frame: Mapping[str, Any]) -> ModelDelta | None:
        if kind == "content_block_delta":
            return self._delta(frame["delta"])
        if kind == "content_block_start":
            return self._block_start(frame["content_block"])
        if kind == "content_block_stop":
            return self._block_end()
        if kind == "message_start":
            self._model_id = frame["message"].get("model") or self._model_id
            return self._report(frame["message"].get("usage"))
        if kind == "message_delta":
            return self._report(frame.get("usage"))
        return None

    def _block_start(self, block: Mapping[str, Any]) -> ModelDelta | None:
        self._block, self._pieces = dict(block), []
        if block["type"] in ("thinking", "redacted_thinking"):
            return ThinkingStart()
        return TextDelta(block["text"]) if block["type"] == "text" and block.get("text") else None

    def _delta(self, delta: Mapping[str, Any]) -> ModelDelta | None:
        kind = delta.get("type")
        if kind == "text_delta":
            return TextDelta(delta["text"])
        if kind == "input_json_delta":
            self._pieces.append(delta["partial_json"])
        elif kind == "thinking_delta":
            self._pieces.append(delta["thinking"])
            return ThinkingDelta(delta["thinking"])
        elif kind == "signature_delta":
            self._block["signature"] = delta["signature"]
        return None

    def _block_end(self) -> ModelDelta | None:
        block, text = self._block, "".join(self._pieces)
        if block["type"] == "tool_use":
            given = block.get("input")
            return tool_call(block["id"], block["name"], text or orjson.dumps(given or {}).decode())
        if block["type"] == "thinking":
            return ThinkingEnd({**block, "thinking": block.get("thinking", "") + text})
        if block["type"] == "redacted_thinking":
            return ThinkingEnd(block)
        return None

    def _report(self, usage: Mapping[str, Any] | None) -> UsageReport:
        self._usage |= {key: value for key, value in (usage or {}).items() if value is not None}
        written = self._usage.get("cache_creation_input_tokens", 0)
        one_hour = (self._usage.get("cache_creation") or {}).get("ephemeral_1h_input_tokens", 0)
        return UsageReport(
            TokenUsage(
                input_tokens=self._usage.get("input_tokens", 0),
                output_tokens=self._usage.get("output_tokens", 0),
                cache_read_input_tokens=self._usage.get("cache_read_input_tokens", 0),
                cache_creation_5m_input_tokens=max(0, written - one_hour),
                cache_creation_1h_input_tokens=one_hour,
            )
        )

    def _stop(self, delta: Mapping[str, Any]) -> Stop:
        reason = _STOPS.get(delta.get("stop_reason") or "", StopReason.END_TURN)
        details = delta.get("stop_details") if reason is StopReason.REFUSAL else None
        return Stop(reason, details=details, model_id=self._model_id)


def _stream_error(error: Mapping[str, Any]) -> ModelError:
    return reported(_STREAM_ERRORS.get(str(error.get("type")), ModelErrorKind.UNKNOWN), error.get("message"), error)
