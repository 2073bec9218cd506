"""A conversation as one text, cut to a size: for a question about it that its messages would be too long for. Pure.

Long pieces are cut in their middle first, more and more. If that is not enough, the oldest pieces are left out, but for
the newest request among them, since that is what everything after it was about.
"""

from collections.abc import Sequence

import orjson

from services.worker.runner.models.base import Block, Message
from services.worker.runner.models.summary import LEFT_OUT, LEFT_OUT_MESSAGES
from services.worker.runner.models.windows import text_tokens

# How many characters of one piece are kept, one attempt after another.
_PIECE_CHARS = (16_000, 4_000, 1_000, 250)
_NAMES = {"user": "Person", "assistant": "You", "system": "System"}


def transcript(messages: Sequence[Message], most_tokens: int) -> str:
    """The conversation in at most so many tokens, by an estimate on the high side."""
    pieces = [(message.role, _piece(message, block)) for message in messages for block in message.content]
    kept = [text for _, text in pieces]
    for chars in _PIECE_CHARS:
        if _tokens(kept) <= most_tokens:
            return "\n\n".join(kept)
        kept = [_cut(text, chars) for _, text in pieces]
    return "\n\n".join(_newest([role for role, _ in pieces], kept, most_tokens))


def _newest(roles: Sequence[str], pieces: Sequence[str], most_tokens: int) -> list[str]:
    """The newest pieces that fit, after a note and the newest request that would be missing."""
    first, room = len(pieces), most_tokens
    while first and (room := room - text_tokens(pieces[first - 1])) >= 0:
        first -= 1
    if not first:
        return list(pieces)
    asked = [text for role, text in zip(roles[:first], pieces[:first], strict=True) if role == "user" and _said(text)]
    return [LEFT_OUT_MESSAGES.format(count=first), *asked[-1:], *pieces[first:]]


def _said(text: str) -> bool:
    return text.startswith(f"{_NAMES['user']}: ")


def _tokens(pieces: Sequence[str]) -> int:
    return sum(map(text_tokens, pieces))


def _piece(message: Message, block: Block) -> str:
    kind = block.get("type")
    if kind == "text":
        return f"{_NAMES[message.role]}: {block['text']}"
    if kind == "tool_use":
        return f"You called {block['name']}: {orjson.dumps(block['input']).decode()}"
    if kind == "tool_result":
        outcome = "failed" if block.get("is_error") else "answered"
        return f"The call {outcome}: {_text(block.get('content') or ())}"
    return f"{_NAMES[message.role]}: {_text([block])}"


def _text(content: Sequence[Block]) -> str:
    pieces = []
    for block in content:
        source = block.get("source")
        if block.get("type") == "text":
            pieces.append(block["text"])
        elif isinstance(source, dict) and source.get("type") == "text":
            pieces.append(str(source.get("data", "")))
        elif block.get("type") == "search_result":
            found = (str(item.get("text", "")) for item in block.get("content") or () if isinstance(item, dict))
            pieces.append("\n".join([str(block.get("title", "")), *found]))
        else:
            pieces.append(f"[{block.get('type', 'content')}]")
    return "\n".join(pieces)


def _cut(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]}{LEFT_OUT.format(count=len(text) - 2 * half)}{text[-half:]}"
