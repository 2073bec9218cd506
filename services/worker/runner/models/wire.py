"""What the vendors' wire formats share.

The SDKs would walk a whole conversation to transform it, and build a validated model for every delta of the answer,
which together cost more than the rest of a turn. The conversation is in the vendor's form already and one or two fields
of a delta are needed, so the providers read the raw response through `json_frames`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import orjson

from services.worker.runner.models.base import ModelError, ModelErrorKind, ToolCall

MAX_FRAME_BYTES = 32 * 1024 * 1024
MAX_MESSAGE_CHARACTERS = 2000
_DONE = b"[DONE]"


async def json_frames(chunks: AsyncIterator[bytes]) -> AsyncGenerator[dict[str, Any]]:
    """The JSON object of each frame, up to the end of the stream or `[DONE]`.

    ModelError (SERVER, retryable) for a frame that is not JSON or never ends.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == _DONE:
                # Read to the end of the body, or the connection could not serve the next request.
                async for _ in chunks:
                    continue
                return
            yield _parse(data)
        if len(rest) > MAX_FRAME_BYTES:
            raise ModelError(ModelErrorKind.SERVER, "The model vendor sent a frame without an end.")


def _parse(data: bytes) -> dict[str, Any]:
    try:
        frame = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ModelError(ModelErrorKind.SERVER, "The model vendor sent a frame that is not JSON.") from error
    if not isinstance(frame, dict):
        raise ModelError(ModelErrorKind.SERVER, "The model vendor sent a frame that is not a JSON object.")
    return frame


def tool_call(call_id: str, name: str, arguments: str) -> ToolCall:
    """The call whose arguments the model wrote as JSON text; empty text stands for no arguments."""
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError as error:
        return ToolCall(call_id, name, {}, input_error=f"The arguments are not JSON: {error}.")
    if not isinstance(value, dict):
        return ToolCall(call_id, name, {}, input_error="The arguments are not a JSON object.")
    return ToolCall(call_id, name, value)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """How long the vendor asks to wait, where it says so in numbers."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * scale)
        except (KeyError, ValueError):
            continue
    return None


def error_message(body: object, otherwise: str) -> str:
    """What the vendor says, from its error body where that has the usual shape."""
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    message = inner.get("message") if isinstance(inner, Mapping) else None
    return str(message or otherwise)[:MAX_MESSAGE_CHARACTERS]
