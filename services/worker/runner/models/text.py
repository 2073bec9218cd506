"""Content blocks as plain text, for protocols that carry nothing else."""

from collections.abc import Iterable, Mapping

from services.worker.runner.models.base import Block


def plain_text(content: Iterable[Block]) -> str:
    """The text of blocks; what can't be carried is named, so that the model knows that it is missing."""
    pieces = []
    for block in content:
        source = block.get("source")
        if block["type"] == "text":
            pieces.append(block["text"])
        elif block["type"] == "document" and isinstance(source, Mapping) and source.get("type") == "text":
            pieces.append(source["data"])
        elif block["type"] == "search_result":
            pieces.append("\n".join([block.get("title", ""), *(item["text"] for item in block.get("content") or ())]))
        elif block["type"] in ("image", "document"):
            pieces.append(f"[{block['type']} that this model can't be shown]")
    return "\n\n".join(pieces)
