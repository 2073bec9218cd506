"""How much context a model takes, and how many tokens something takes that no vendor has counted yet.

The table knows families of models by how their ids begin; a model that it does not know gets DEFAULT_WINDOW. What it
says may be less than a vendor allows: a context is then compacted earlier than it must. Where it says more, the vendor
refuses the request, and the context is compacted then.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from services.worker.runner.models.base import Block

DEFAULT_WINDOW = 128_000
# Tokens of input, by family; the first that fits counts.
_FAMILIES = [
    (re.compile(pattern), tokens)
    for pattern, tokens in (
        (r"claude-(opus|sonnet|fable|mythos)-(4-[6-9]|[5-9])", 1_000_000),
        (r"claude", 200_000),
        (r"gpt-5", 272_000),
        (r"gpt-4\.1", 1_000_000),
        (r"gpt-4(o|-turbo|\.5)", 128_000),
        (r"gpt-4", 8_000),
        (r"gpt-3\.5", 16_000),
        (r"o[1345](-|$)", 200_000),
        (r"gemini", 1_000_000),
        (r"(grok|glm|kimi|minimax)", 128_000),
        (r"(qwen|mistral|mixtral|gemma|phi)", 32_000),
        (r"demo$", 200_000),
    )
]
# Bytes of text in a token: fewer than most text has, so that an estimate errs on the side of compacting early.
_BYTES_PER_TOKEN = 3
_IMAGE_TOKENS = 1_600
_DOCUMENT_TOKENS = 3_000
# Base64 characters of a document that make one token, roughly: most of a document's bytes are no text.
_DOCUMENT_CHARS_PER_TOKEN = 30
_BLOCK_TOKENS = 8


@lru_cache(maxsize=256)
def window_tokens(model_id: str) -> int:
    """The input that a model takes, in tokens."""
    # Many servers put a vendor before the name: `anthropic/claude-…`.
    name = model_id.lower().rpartition("/")[2]
    return next((tokens for pattern, tokens in _FAMILIES if pattern.match(name)), DEFAULT_WINDOW)


def text_tokens(text: str) -> int:
    """An estimate for text, on the high side."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return -(-size // _BYTES_PER_TOKEN)


def block_tokens(block: Block) -> int:
    """An estimate for one block of content."""
    kind = block.get("type")
    if kind == "text":
        return _BLOCK_TOKENS + text_tokens(block["text"])
    if kind == "tool_result":
        return _BLOCK_TOKENS + sum(map(block_tokens, block.get("content") or ()))
    if kind == "tool_use":
        return _BLOCK_TOKENS + text_tokens(block["name"]) + value_tokens(block["input"])
    if kind == "image":
        return _IMAGE_TOKENS
    if kind == "document":
        return _document_tokens(block.get("source"))
    return _BLOCK_TOKENS + value_tokens(block)


def value_tokens(value: Any) -> int:
    """An estimate for a JSON value."""
    if isinstance(value, str):
        return text_tokens(value)
    if isinstance(value, Mapping):
        return sum(text_tokens(str(key)) + value_tokens(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(value_tokens, value))
    return 2


def _document_tokens(source: Any) -> int:
    if not isinstance(source, Mapping):
        return _DOCUMENT_TOKENS
    data = source.get("data")
    if not isinstance(data, str):
        return _DOCUMENT_TOKENS
    if source.get("type") == "text":
        return _BLOCK_TOKENS + text_tokens(data)
    return _DOCUMENT_TOKENS + len(data) // _DOCUMENT_CHARS_PER_TOKEN
