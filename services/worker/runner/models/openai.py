"""Chat completions, as the official SDK speaks them, at any `base_url` that understands them.

Servers differ in what they leave out, so everything but the choices is optional.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import openai
import orjson

from kit.clock import rfc3339
from kit.ids import new_id
from services.worker.runner.models.base import (
    Block,
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
from services.worker.runner.models.text import plain_text
from services.worker.runner.models.vendor import CLIENT_OPTIONS, VendorModel, broke_off, reported
from services.worker.runner.models.wire import tool_call

_STOPS = {
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
    "length": StopReason.MAX_TOKENS,
    "content_filter": StopReason.REFUSAL,
}


class OpenAIModel(VendorModel):
    """The vendor `openai`, or whoever speaks its protocol at `base_url`."""

    sdk = openai

    def __init__(self, access: ModelAccess) -> None:
        self._is_vendor = not access.base_url
        client = openai.AsyncOpenAI(
            api_key=access.api_key or "none", base_url=access.base_url or "https://api.openai.com/v1", **CLIENT_OPTIONS
        )
        headers = {**client.default_headers, "Authorization": f"Bearer {client.api_key}"}
        super().__init__(client, "/chat/completions", headers)

    @staticmethod
    def refused(status: int, message: str, body: Any, headers: Mapping[str, str]) -> ModelError:
        """As everywhere, but for a quota that is used up: the vendor reports it like a rate limit."""
        inner = body.get("error") if isinstance(body, Mapping) else None
        if status == 429 and isinstance(inner, Mapping) and inner.get("code") == "insufficient_quota":
            return ModelError(ModelErrorKind.BILLING, message, status=429)
        return VendorModel.refused(status, message, body, headers)

    def read(self, request: ModelRequest, frames: AsyncIterator[dict[str, Any]]) -> AsyncGenerator[ModelDelta]:
        """The chunks of one answer."""
        return _Answer(request).read(frames)

    async def models(self) -> list[ModelInfo]:
        """As the vendor lists them, in the order of their making."""
        page = await self._client.models.list(timeout=CONNECT_SECONDS)
        newest_first = sorted(page.data, key=lambda model: model.created or 0, reverse=True)
        return [
            ModelInfo(
                id=model.id,
                display_name=model.id,
                created_at=rfc3339(datetime.fromtimestamp(model.created or 0, UTC)),
            )
            for model in newest_first
        ]

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """One request with its conversation."""
        messages = [{"role": "system", "content": request.system}] if request.system else []
        for message in request.messages:
            messages += _rendered(message)
        body: dict[str, Any] = {
            "model": request.model_id,
            "messages": messages,
            "stream_options": {"include_usage": True},
        }
        if request.max_tokens:
            body["max_completion_tokens" if self._is_vendor else "max_tokens"] = request.max_tokens
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.input_schema,
                    },
                }
                for tool in request.tools
            ]
        if self._is_vendor and request.cache_key:
            body["prompt_cache_key"] = request.cache_key
        return body


def _rendered(message: Message) -> list[dict[str, Any]]:
    rendered = message.rendered.get("openai")
    if rendered is None:
        render = {"user": _render_user, "assistant": _render_assistant, "system": _render_system}[message.role]
        rendered = message.rendered["openai"] = render(message.content)
    return rendered


def _render_system(content: tuple[Block, ...]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": plain_text(content)}]


def _render_assistant(content: tuple[Block, ...]) -> list[dict[str, Any]]:
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": orjson.dumps(block["input"]).decode()},
        }
        for block in content
        if block["type"] == "tool_use"
    ]
    rendered: dict[str, Any] = {"role": "assistant", "content": plain_text(content) or None}
    return [rendered | {"tool_calls": calls} if calls else rendered]


def _render_user(content: tuple[Block, ...]) -> list[dict[str, Any]]:
    """Tool results become messages of their own, which this protocol wants first; pictures in them follow as input."""
    results = [block for block in content if block["type"] == "tool_result"]
    rendered: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": block["tool_use_id"], "content": plain_text(block.get("content") or ())}
        for block in results
    ]
    pictures = [inner for block in results for inner in block.get("content") or () if inner["type"] == "image"]
    parts = [_part(block) for block in (*pictures, *content) if block["type"] != "tool_result"]
    if not parts:
        return rendered
    only_text = all(part["type"] == "text" for part in parts)
    return [
        *rendered,
        {"role": "user", "content": "\n\n".join(part["text"] for part in parts) if only_text else parts},
    ]


def _part(block: Block) -> dict[str, Any]:
    source = block.get("source")
    if block["type"] == "image" and isinstance(source, Mapping):
        if source.get("type") == "url":
            return {"type": "image_url", "image_url": {"url": source["url"]}}
        if source.get("type") == "base64":
            return {"type": "image_url", "image_url": {"url": f"data:{source['media_type']};base64,{source['data']}"}}
    return {"type": "text", "text": plain_text((block,))}


class _Answer:
    """One answer while it streams in."""

    def __init__(self, request: ModelRequest) -> None:
        self._model_id = request.model_id
        self._calls: dict[int, dict[str, str]] = {}
        self._thinking = False
        self._finish: str | None = None
        self._refusal: list[str] = []

    async def read(self, frames: AsyncIterator[dict[str, Any]]) -> AsyncGenerator[ModelDelta]:
        async for frame in frames:
            if error := frame.get("error"):
                raise _stream_error(error)
            self._model_id = frame.get("model") or self._model_id
            for choice in frame.get("choices") or ():
                for delta in self._choice(choice):
                    yield delta
            if usage := frame.get("usage"):
                yield _report(usage)
        if self._finish is None:
            raise broke_off()
        if self._thinking:
            yield ThinkingEnd()
        for call in self._calls.values():
            yield tool_call(call["id"] or new_id("call"), call["name"], call["arguments"])
        yield self._stop()

    def _choice(self, choice: Mapping[str, Any]) -> list[ModelDelta]:
        delta, found = choice.get("delta") or {}, list[ModelDelta]()
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            if not self._thinking:
                self._thinking = True
                found.append(ThinkingStart())
            found.append(ThinkingDelta(str(reasoning)))
        if text := delta.get("content"):
            if self._thinking:
                self._thinking = False
                found.append(ThinkingEnd())
            found.append(TextDelta(text))
        if refusal := delta.get("refusal"):
            self._refusal.append(refusal)
        for piece in delta.get("tool_calls") or ():
            self._add_call(piece)
        self._finish = choice.get("finish_reason") or self._finish
        return found

    def _add_call(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        index = piece.get("index", len(self._calls))
        call = self._calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        call["id"] = piece.get("id") or call["id"]
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def _stop(self) -> Stop:
        if self._refusal:
            return Stop(StopReason.REFUSAL, {"explanation": "".join(self._refusal)}, self._model_id)
        if self._calls:
            return Stop(StopReason.TOOL_USE, model_id=self._model_id)
        return Stop(_STOPS.get(self._finish or "", StopReason.END_TURN), model_id=self._model_id)


def _report(usage: Mapping[str, Any]) -> UsageReport:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return UsageReport(
        TokenUsage(
            input_tokens=max(0, (usage.get("prompt_tokens") or 0) - cached),
            output_tokens=usage.get("completion_tokens") or 0,
            cache_read_input_tokens=cached,
        )
    )


def _stream_error(error: Any) -> ModelError:
    return reported(ModelErrorKind.SERVER, error.get("message") if isinstance(error, Mapping) else error, error)
