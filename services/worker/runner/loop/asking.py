"""One model request: from its start in the log to its end, with what the model said in between.

An answer reaches the journal whole: text, calls and the end of the request come in one go, when the model has stopped.
So the log never holds a part of an answer, but for the text that a user's interrupt cut off. Whatever happens, the end
of the request is written before this returns or raises, except where the lease is lost.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson

from kit import failpoints
from kit.ids import new_id
from kit.telemetry import tracer
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.guardrails import Objection, tell
from services.worker.runner.loop.journal import Journal
from services.worker.runner.loop.speech import Speech
from services.worker.runner.loop.stopping import Stopped, StopSignal
from services.worker.runner.loop.tools import Toolbox
from services.worker.runner.models.base import (
    Block,
    ModelDelta,
    ModelError,
    ModelErrorKind,
    ModelProvider,
    ModelRequest,
    Stop,
    StopReason,
    TextDelta,
    ThinkingEnd,
    ThinkingStart,
    TokenUsage,
    ToolCall,
    UsageReport,
)

# A vendor that sends nothing for this long is taken for dead.
SILENCE_SECONDS = 300.0
# Calls of one answer that are looked at; more of them is a model gone wild.
MOST_CALLS = 256


@dataclass(slots=True)
class Answer:
    """What came from the model so far."""

    text: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    reasoning: list[Block] = field(default_factory=list)
    usage: TokenUsage = field(default_factory=TokenUsage)
    stop: Stop | None = None
    message_id: str = ""
    thinking_id: str = ""
    # Why it is not let through.
    objection: Objection | None = None
    # Whether nothing came that could be used; the log says why.
    failed: bool = False

    def refusal(self) -> bytes:
        """What the vendor said of its refusal, as an idle session tells it."""
        told = (self.stop.details if self.stop is not None else None) or {}
        told = {"type": "refusal", "category": told.get("category"), "explanation": told.get("explanation")}
        return orjson.dumps(told)


class Asker:
    """Asks the model on behalf of one turn."""

    def __init__(
        self, journal: Journal, conversation: Conversation, speech: Speech, stop: StopSignal, toolbox: Toolbox
    ) -> None:
        self._journal = journal
        self._conversation = conversation
        self._speech = speech
        self._stop = stop
        self._toolbox = toolbox

    async def ask(self, provider: ModelProvider, model_id: str, system: str, **options: Any) -> Answer:
        """Ask once. Raises ModelError or Stopped after the log says how the request ended."""
        self._stop.check()
        fields = {"context_seq": self._conversation.known_seq}
        start_id = self._journal.add("span.model_request_start", fields)
        request = ModelRequest(model_id, system, self._conversation.messages(), self._toolbox.definitions, **options)
        answer, started = Answer(), time.monotonic()
        try:
            with self._stop.scope(), tracer().start_as_current_span("model.request"):
                await failpoints.point("runner.model.mid_request")
                await self._read(provider, request, answer)
                await self._check(answer)
        except Stopped as stopped:
            if stopped.by_user:
                self._write_message(answer, model_id, "interrupted", started)
            write_end(self._journal, start_id, answer, model_id, is_error=not stopped.by_user)
            raise
        except Exception:
            write_end(self._journal, start_id, answer, model_id, is_error=True)
            raise
        finally:
            self._speech.end()
        self._write_answer(start_id, answer, model_id, started)
        return answer

    async def _read(self, provider: ModelProvider, request: ModelRequest, answer: Answer) -> None:
        await read_deltas(provider, request, lambda delta: self._take(delta, answer))
        if answer.stop is None:
            raise broke_off()

    async def _check(self, answer: Answer) -> None:
        """An answer that was withheld until here gets its id, or is objected to."""
        text = "".join(answer.text)
        if self._speech.withholds and text.strip():
            answer.objection = await self._speech.guardrails.objection_to(text)
            answer.message_id = "" if answer.objection else new_id("sevt")

    async def _take(self, delta: ModelDelta, answer: Answer) -> None:
        if isinstance(delta, TextDelta):
            await self._take_text(delta.text, answer)
        elif isinstance(delta, ToolCall):
            answer.calls.append(delta)
        elif isinstance(delta, UsageReport):
            answer.usage = delta.usage
        elif isinstance(delta, Stop):
            answer.stop = delta
        elif isinstance(delta, ThinkingStart):
            answer.thinking_id = new_id("sevt")
            await self._speech.start_thinking(answer.thinking_id)
        elif isinstance(delta, ThinkingEnd):
            if delta.opaque is not None:
                answer.reasoning.append(delta.opaque)
            self._end_thinking(answer)

    async def _take_text(self, text: str, answer: Answer) -> None:
        answer.text.append(text)
        if answer.message_id:
            await self._speech.more_text(text)
        elif text.strip() and not self._speech.withholds:
            answer.message_id = new_id("sevt")
            await self._speech.start_message(self._journal.add, answer.message_id, "".join(answer.text))

    def _end_thinking(self, answer: Answer) -> None:
        if answer.thinking_id:
            self._journal.add("agent.thinking", {}, answer.thinking_id)
            answer.thinking_id = ""

    def _write_answer(self, start_id: str, answer: Answer, model_id: str, started: float) -> None:
        assert answer.stop is not None, "a stream that ends without Stop raises"
        reason = answer.stop.reason
        self._end_thinking(answer)
        if answer.objection is not None:
            write_end(self._journal, start_id, answer, model_id, is_error=False)
            tell(self._journal, answer.objection)
            return
        self._write_message(answer, model_id, reason.value, started)
        # What a refusing model wanted to call is not called.
        calls = [] if reason is StopReason.REFUSAL else answer.calls[:MOST_CALLS]
        refusals = self._toolbox.write_calls(calls, self._journal)
        write_end(self._journal, start_id, answer, model_id, is_error=False)
        for event_type, fields in refusals:
            self._journal.add(event_type, fields)
        if answer.reasoning:
            self._conversation.remember_reasoning(answer.reasoning)

    def _write_message(self, answer: Answer, model_id: str, stop_reason: str, started: float) -> None:
        if not answer.message_id:
            return
        fields = {
            "content": [{"type": "text", "text": "".join(answer.text)}],
            "model_used": _model_used(answer, model_id),
            "tokens_in": answer.usage.input_tokens,
            "tokens_out": answer.usage.output_tokens,
            "stop_reason": stop_reason,
            "duration_ms": round((time.monotonic() - started) * 1000),
        }
        self._journal.add("agent.message", fields, answer.message_id)


async def read_deltas(
    provider: ModelProvider, request: ModelRequest, take: Callable[[ModelDelta], Awaitable[None]]
) -> None:
    """Hand on what the model sends. Raises ModelError, also where it sends nothing for too long."""
    loop = asyncio.get_running_loop()
    try:
        async with (
            asyncio.timeout(SILENCE_SECONDS) as silence,
            aclosing(provider.stream(request)) as deltas,
        ):
            rescheduled = loop.time()
            async for delta in deltas:
                await take(delta)
                # A timer per delta would cost more than the delta.
                if (now := loop.time()) - rescheduled > 1.0:
                    rescheduled = now
                    silence.reschedule(now + SILENCE_SECONDS)
    except TimeoutError:
        message = f"The model sent nothing for {SILENCE_SECONDS:.0f} seconds."
        raise ModelError(ModelErrorKind.TIMEOUT, message) from None


def broke_off() -> ModelError:
    """An answer ended without Stop."""
    return ModelError(ModelErrorKind.CONNECTION, "The model's answer broke off before its end.")


def write_end(journal: Journal, start_id: str, answer: Answer, model_id: str, *, is_error: bool) -> None:
    """Append the end of a model request, and count what it cost."""
    usage = answer.usage
    model_usage = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_5m_input_tokens + usage.cache_creation_1h_input_tokens,
    }
    fields = {"model_request_start_id": start_id, "model_usage": model_usage, "is_error": is_error}
    journal.add("span.model_request_end", fields)
    if usage != TokenUsage():
        journal.spend(_model_used(answer, model_id), usage, asked_as=model_id)


def _model_used(answer: Answer, model_id: str) -> str:
    return (answer.stop.model_id if answer.stop is not None else None) or model_id
