"""Answers of a scripted vendor in the form of chat completions."""

from __future__ import annotations

from typing import Any

import orjson

from tests.support.vendor import Answer, Vendor, sse


def _stop(reason: str) -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    return {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}


def _piece(delta: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": delta}]}


def said(text: str) -> Answer:
    """A plain answer."""
    return Answer(
        200, sse({"model": "m", "choices": [{"index": 0, "delta": {"content": text}}]}, _stop("stop"), "[DONE]")
    )


def called(name: str, **arguments: Any) -> Answer:
    """A call of a tool."""
    function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
    delta = {"tool_calls": [{"index": 0, "id": f"call_{name}", "type": "function", "function": function}]}
    return Answer(200, sse(_piece(delta), _stop("tool_calls"), "[DONE]"))


def breaks_off(text: str) -> Answer:
    """An answer that begins and then says nothing more."""
    return Answer(200, sse(_piece({"content": text})), hang=True)


def environment(vendor: Vendor, key: str = "key") -> dict[str, str]:
    """What makes a platform ask this vendor."""
    return {
        "MANAGED_AGENTS_MODEL_VENDOR": "openai",
        "MANAGED_AGENTS_MODEL_BASE_URL": f"{vendor.url}/v1",
        "MANAGED_AGENTS_MODEL_API_KEY": key,
        "MANAGED_AGENTS_MODEL": "m",
    }
