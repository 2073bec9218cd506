"""The demo model: what answers while no vendor is configured.

It is no language model. It reads the last user text, plans with the tools that it was given (`demo_plan`), looks at
what each call brought, and says in its answer what it saw and that it is only the demo. The same context always gives
the same answer, and the same summary where one is asked for. Four characters count as one token, a tool call as eight.

Directives in the text make it useful as a measuring device:

    TOOL:<name>:<json>   call a tool; several give several calls in one answer, made once
    LEN:<n>              answer with n tokens
    DELAY:<ms>           wait before each piece of the answer
    THINK:               reason before the answer
    STOP:<reason>        stop with `refusal` or `max_tokens`
    FAIL:<status>        fail as a vendor that answers with this HTTP status

As the grader of an outcome it follows `demo_grader`.
"""

import asyncio
import re
from collections.abc import AsyncGenerator

from services.worker.runner.models import demo_grader, demo_plan
from services.worker.runner.models.base import (
    VERDICT_TOOL,
    ModelAccess,
    ModelDelta,
    ModelInfo,
    ModelRequest,
    Stop,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    TokenUsage,
    ToolCall,
    UsageReport,
    error_from_status,
)

_TOOL = re.compile(r"TOOL:([A-Za-z0-9_.\-]+):")
_NUMBER = {name: re.compile(rf"\b{name}:(\d{{1,6}})") for name in ("LEN", "DELAY", "FAIL")}
_STOP = re.compile(r"\bSTOP:(refusal|max_tokens)\b")
_PIECE_CHARS = 24
_CHARS_PER_TOKEN = 4
_TOKENS_PER_CALL = 8


class DemoModel:
    """A provider without a vendor."""

    def __init__(self, access: ModelAccess) -> None:
        self._default_model = access.default_model or "demo"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelDelta, None]:
        """Answer from the rules of the module docstring."""
        if (prepared := _prepared(request)) is not None:
            for delta in prepared:
                yield delta
            return
        progress = demo_plan.read_progress(request.messages)
        text = progress.text
        if status := _number("FAIL", text):
            raise error_from_status(status, f"the demo model was told to fail with status {status}")
        delay_seconds = _number("DELAY", text) / 1000
        if "THINK:" in text:
            yield ThinkingStart()
            yield ThinkingDelta("The demo model pretends to think.")
            yield ThinkingEnd()
        calls = _directed_calls(progress)
        pieces: list[str] = []
        if not calls:
            if length := _number("LEN", text):
                pieces = [f"t{number} " for number in range(length)]
            else:
                reply = demo_plan.next_reply(progress, request.tools)
                calls, pieces = reply.calls, _in_pieces(reply.text)
        for piece in pieces:
            if delay_seconds:
                await asyncio.sleep(delay_seconds)
            yield TextDelta(piece)
        for number, (name, arguments) in enumerate(calls):
            if delay_seconds:
                await asyncio.sleep(delay_seconds)
            yield ToolCall(f"toolu_demo_{len(request.messages)}_{number}", name, arguments)
        yield UsageReport(_usage(request, pieces, len(calls), counted=bool(_number("LEN", text))))
        yield _stop(text, bool(calls), request.model_id)

    async def list_models(self) -> list[ModelInfo]:
        """The one model that there is."""
        return [ModelInfo(self._default_model, "Demo model (no vendor configured)")]

    async def close(self) -> None:
        """Nothing is held."""


def _prepared(request: ModelRequest) -> list[ModelDelta] | None:
    """The answer to a request that no person made."""
    if demo_grader.is_asked(request.tools):
        return _graded(request)
    return _summed(request) if demo_plan.wants_summary(request.messages) else None


def _summed(request: ModelRequest) -> list[ModelDelta]:
    pieces = _in_pieces(demo_plan.summary(request.messages))
    usage = UsageReport(_usage(request, pieces, 0, counted=False))
    return [*map(TextDelta, pieces), usage, Stop(StopReason.END_TURN, None, request.model_id)]


def _graded(request: ModelRequest) -> list[ModelDelta]:
    verdict = demo_grader.verdict(request.messages)
    said: ModelDelta = TextDelta("I have no verdict.")
    if verdict is not None:
        said = ToolCall(f"toolu_demo_{len(request.messages)}_0", VERDICT_TOOL, verdict)
    usage = UsageReport(_usage(request, [], 1, counted=False))
    return [said, usage, Stop(StopReason.TOOL_USE if verdict else StopReason.END_TURN, None, request.model_id)]


def _number(directive: str, text: str) -> int:
    found = _NUMBER[directive].search(text) if f"{directive}:" in text else None
    return int(found[1]) if found else 0


def _directed_calls(progress: demo_plan.Progress) -> list[tuple[str, dict]]:
    if progress.calls or "TOOL:" not in progress.text:
        return []
    calls = []
    for found in _TOOL.finditer(progress.text):
        arguments = demo_plan.leading_json(progress.text[found.end() :])
        calls.append((found[1], arguments if isinstance(arguments, dict) else {}))
    return calls


def _in_pieces(text: str) -> list[str]:
    return [text[at : at + _PIECE_CHARS] for at in range(0, len(text), _PIECE_CHARS)]


def _usage(request: ModelRequest, pieces: list[str], calls: int, *, counted: bool) -> TokenUsage:
    context = len(request.system) + sum(message.size for message in request.messages)
    said = len(pieces) if counted else -(-sum(map(len, pieces)) // _CHARS_PER_TOKEN)
    return TokenUsage(context // _CHARS_PER_TOKEN + 1, said + calls * _TOKENS_PER_CALL)


def _stop(text: str, calls: bool, model_id: str) -> Stop:
    if found := _STOP.search(text) if "STOP:" in text else None:
        reason = StopReason(found[1])
        details = {"explanation": "The demo model was told to refuse."} if reason is StopReason.REFUSAL else None
        return Stop(reason, details, model_id)
    return Stop(StopReason.TOOL_USE if calls else StopReason.END_TURN, None, model_id)
