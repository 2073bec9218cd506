"""How the demo model grades: a point of the rubric is met where its words stand in the record. Always the same.

A rubric is read line by line. A point counts as met where each of its longer words, or each quoted text in it, stands
somewhere in the record of what the agent produced, whatever the case. What is missing is quoted in the explanation, so
a demo agent that is told of it repeats it, and the next evaluation is satisfied.

`GRADE:<result>` in the rubric decides instead: `satisfied`, `needs_revision`, `failed`, or `none` for no verdict.
"""

import re
from collections.abc import Sequence
from typing import Any

from services.worker.runner.models.base import VERDICT_TOOL, Message, ToolDefinition

_DIRECTIVE = re.compile(r"\bGRADE:(satisfied|needs_revision|failed|none)\b")
_QUOTED = re.compile(r'"([^"\n]{1,500})"|“([^”\n]{1,500})”')
_WORD = re.compile(r"[^\W_]{4,}")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])?\s*")


def is_asked(tools: Sequence[ToolDefinition]) -> bool:
    """Whether a request wants a verdict and nothing else."""
    return len(tools) == 1 and tools[0].name == VERDICT_TOOL


def verdict(messages: Sequence[Message]) -> dict[str, Any] | None:
    """The input of the verdict call, or None where the rubric asks for none."""
    _, rubric, record = (block["text"].partition("\n")[2] for block in messages[0].content)
    if directive := _DIRECTIVE.search(rubric):
        result = directive[1]
        return None if result == "none" else _answer(result, f"The rubric asks the demo model for {result}.")
    missing = [point for point in _points(rubric) if not _is_met(point, record.casefold())]
    if not missing:
        return _answer("satisfied", "The words of each point stand in the record.")
    told = "\n".join(f"- {point}" for point in missing)
    return _answer("needs_revision", f"The record does not show:\n{told}")


def _answer(result: str, explanation: str) -> dict[str, Any]:
    return {"result": result, "explanation": explanation}


def _points(rubric: str) -> list[str]:
    return [point for line in rubric.splitlines() if (point := _BULLET.sub("", line).strip())]


def _is_met(point: str, record: str) -> bool:
    wanted = [found[1] or found[2] for found in _QUOTED.finditer(point)] or _WORD.findall(point) or [point]
    return all(word.casefold() in record for word in wanted)
