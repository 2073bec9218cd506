"""Content as the messages of a context hold it. Pure."""

from collections.abc import Iterable

from services.worker.runner.models.base import Block, Message, Role

_BLOCK_TYPES = frozenset(("text", "image", "document", "search_result"))


def usable_blocks(content: object) -> list[Block]:
    """The blocks of an event's content that a model can take: vendors refuse empty text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    if not isinstance(content, list):
        return []
    return [block for block in content if block["type"] in _BLOCK_TYPES and block.get("text", "x").strip()]


def push(messages: list[Message], role: Role, content: list[Block], reasoning: Iterable[Block] = ()) -> None:
    """Add a message, or join it to the last one of its role between two answers. Messages are never changed."""
    last = messages[-1] if messages else None
    if last is not None and last.role == "system" and role == "user":
        messages.pop()
        push(messages, role, content)
        messages.append(last)
    elif last is not None and last.role == role:
        messages[-1] = Message(role, [*last.content, *content], [*last.reasoning, *reasoning])
    else:
        messages.append(Message(role, content, tuple(reasoning)))
