"""Compaction: where a context nears what its model takes, the model writes a summary, and the turn goes on from that.

It happens between two requests of a turn, when no call is open: because the count of the context says so, or because
the vendor refused the last request as too long. The summary is a model request like any other: it has a span, costs
tokens, can be interrupted, and fails as others do. `agent.thread_context_compacted` and the end of its span are written
together, so a crash leaves either no trace of a summary or all of it; the log before it stays as it was.

What the model is shown for it: first the context itself, which its cache knows, with the question at the end. Where
that is too long, or the model called tools instead of answering, a transcript that is cut to what fits.

The event's own fields are `content` (the summary), `system` (what system messages say that were read before it),
`outcome` (the goal that is worked on), `context_seq` (a context can be built from the events after it, with nothing of
what is before), and the tokens before and after it, as far as they can be estimated.
"""

from collections.abc import Iterator
from typing import Any

from kit import failpoints
from kit.telemetry import log
from services.worker.runner.loop.asking import Answer, broke_off, read_deltas, write_end
from services.worker.runner.loop.blocks import push
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.journal import Journal
from services.worker.runner.loop.stopping import Stopped, StopSignal
from services.worker.runner.loop.tools import Toolbox
from services.worker.runner.loop.transcript import transcript
from services.worker.runner.models.base import (
    Message,
    ModelDelta,
    ModelError,
    ModelErrorKind,
    ModelProvider,
    ModelRequest,
    Stop,
    StopReason,
    TextDelta,
    ToolCall,
    UsageReport,
)
from services.worker.runner.models.summary import COMPACTION, REQUEST
from services.worker.runner.models.windows import block_tokens, text_tokens, value_tokens, window_tokens

# The part of a window at which it is near its end; the rest is for the answer, and for a summary of it all.
NEAR_END = 0.8
# Parts of the context that a transcript keeps, one attempt after another.
_TRANSCRIPTS = (0.5, 0.2, 0.05)
_ANOTHER_ATTEMPT_MAY_HELP = frozenset((ModelErrorKind.TOO_LONG, ModelErrorKind.INVALID_REQUEST))

Question = tuple[list[Message], bool]


class NoSummary(Exception):
    """The model gave no summary, however it was asked. The turn may try with the context as it is; that is all."""


class Compactor:
    """Compacts the context of one turn. `window` is the operator's word for it; 0 leaves it to the table."""

    def __init__(
        self, journal: Journal, conversation: Conversation, stop: StopSignal, toolbox: Toolbox, window: int = 0
    ) -> None:
        self._journal = journal
        self._conversation = conversation
        self._stop = stop
        self._toolbox = toolbox
        self._window = window
        self._was_refused = False
        self._gave_up = False
        # Whether the context was compacted since the model's newest answer: once more would gain nothing.
        self._is_fresh = False

    def note_answer(self) -> None:
        """The model answered, so the context fits."""
        self._was_refused = self._is_fresh = False

    def note_refusal(self) -> bool:
        """The vendor refused the context as too long; whether a compaction may help."""
        self._was_refused = not self._is_fresh and not self._gave_up and self._can_compact()
        return self._was_refused

    def is_due(self, model_id: str, system: str) -> bool:
        """Whether the context has to be compacted before the next request."""
        if self._was_refused:
            return True
        if self._is_fresh or self._gave_up:
            return False
        limit = self._limit(model_id)
        counted = self._conversation.tokens(0)
        if counted < limit / 2 or not self._can_compact():
            # What comes with each request is left out here: estimating it would cost every short turn.
            return False
        return self._conversation.tokens(self._fixed_tokens(system)) >= limit

    def _can_compact(self) -> bool:
        """Whether there is something to summarise, and no call would come apart from its result."""
        return bool(self._conversation.read_messages()) and not self._conversation.open_calls()

    async def compact(self, provider: ModelProvider, model_id: str, system: str, **options: Any) -> None:
        """Have the context summarised, and go on from there.

        Raises ModelError and Stopped as any request does, and NoSummary, after which nothing has changed.
        """
        before = self._conversation.tokens(self._fixed_tokens(system))
        for messages, with_tools in self._questions(model_id, before):
            tools = self._toolbox.definitions if with_tools else ()
            request = ModelRequest(model_id, system, messages, tools, **options)
            try:
                written = await self._summarise(provider, request, before)
            except ModelError as error:
                if error.kind not in _ANOTHER_ATTEMPT_MAY_HELP:
                    raise
                log.warning("a context could not be summarised", error=error.message, messages=len(messages))
                continue
            if written:
                self._was_refused, self._is_fresh = False, True
                await self._journal.flush()
                await failpoints.point("runner.compaction.stored")
                return
        self._was_refused, self._gave_up = False, True
        raise NoSummary

    async def _summarise(self, provider: ModelProvider, request: ModelRequest, before: int) -> bool:
        """One request; whether it brought a summary, which is in the journal then."""
        self._stop.check()
        read_seq = self._conversation.read_seq
        start = {"context_seq": read_seq, "purpose": COMPACTION}
        start_id = self._journal.add("span.model_request_start", start)
        answer = Answer()
        try:
            with self._stop.scope():
                await failpoints.point("runner.compaction.mid_request")
                await read_deltas(provider, request, lambda delta: _take(delta, answer))
            if answer.stop is None:
                raise broke_off()
        except Stopped as stopped:
            write_end(self._journal, start_id, answer, request.model_id, is_error=not stopped.by_user)
            raise
        except Exception:
            write_end(self._journal, start_id, answer, request.model_id, is_error=True)
            raise
        summary = "".join(answer.text).strip()
        # What a model says that wants to call a tool instead is no summary.
        usable = bool(summary) and not answer.calls and answer.stop.reason is not StopReason.REFUSAL
        if usable:
            await failpoints.point("runner.compaction.answered")
            fields = {
                "content": [{"type": "text", "text": summary}],
                "system": self._conversation.standing_instructions(),
                "outcome": self._conversation.goal.dump() if self._conversation.goal is not None else None,
                "context_seq": read_seq,
                "tokens_before": before,
                "tokens_after": answer.usage.output_tokens or text_tokens(summary),
            }
            self._journal.add("agent.thread_context_compacted", fields)
        write_end(self._journal, start_id, answer, request.model_id, is_error=False)
        return usable

    def _questions(self, model_id: str, tokens: int) -> Iterator[Question]:
        """What to show the model, one after another: messages, and whether the tools belong to them."""
        messages = self._conversation.read_messages()
        if not self._was_refused and tokens <= self._window_of(model_id):
            asked = messages.copy()
            push(asked, "user", [{"type": "text", "text": REQUEST}])
            yield asked, True
        size = min(sum(block_tokens(block) for message in messages for block in message.content), tokens)
        for part in _TRANSCRIPTS:
            room = int(min(size, self._limit(model_id)) * part)
            yield [Message("user", [{"type": "text", "text": f"{transcript(messages, room)}\n\n{REQUEST}"}])], False

    def _window_of(self, model_id: str) -> int:
        return self._window or window_tokens(model_id)

    def _limit(self, model_id: str) -> int:
        return int(self._window_of(model_id) * NEAR_END)

    def _fixed_tokens(self, system: str) -> int:
        definitions = self._toolbox.definitions
        tools = sum(text_tokens(tool.name + tool.description) + value_tokens(tool.input_schema) for tool in definitions)
        return text_tokens(system) + tools


async def _take(delta: ModelDelta, answer: Answer) -> None:
    if isinstance(delta, TextDelta):
        answer.text.append(delta.text)
    elif isinstance(delta, ToolCall):
        answer.calls.append(delta)
    elif isinstance(delta, UsageReport):
        answer.usage = delta.usage
    elif isinstance(delta, Stop):
        answer.stop = delta
