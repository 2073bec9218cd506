"""From events to the model's context.

A Conversation is built event by event and is a pure function of the log: the same events give the same messages,
whether they came one by one while a turn ran or all at once after a crash. It also knows which calls of the newest
answer are open, and whether a model request has no end.

How events become messages:

- A `span.model_request_start` says with `context_seq` up to which seq it read. Inputs up to there come before its
  answer; those after it wait and come before the next one. So an input that arrived while the model spoke never
  stands in front of an answer that did not see it.
- What one answer says and calls is one assistant message, followed by one user message with the results of its calls,
  in the order of the calls. Inputs that arrived meanwhile come after the results. A call that nobody answered gets a
  result that says so, since the vendors refuse a call without one.
- A `system.message` is a turn of its own, after the user's messages that stand between the same two answers: vendors
  want it before an answer. One without usable text is dropped.
- An `agent.thread_context_compacted` stands for everything before it but the inputs that wait: its summary comes
  first, then the system messages that the model had read, which it carries along.

How long the context is: what the vendor counted for the newest answer, and an estimate for what came after it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from services.worker.runner.loop.blocks import push, usable_blocks
from services.worker.runner.loop.calls import WITHHELD, Call, failed_result
from services.worker.runner.loop.goal import END, ONGOING, START, Goal, declared, restored, settling
from services.worker.runner.loop.steps import UNANSWERED, Steps
from services.worker.runner.models.base import Block, Message, Role, block_chars
from services.worker.runner.models.summary import COMPACTION, INTRODUCTION
from services.worker.runner.models.windows import block_tokens
from services.worker.runner.outside.sessions import WORKER

# What an event costs in memory beyond its bytes, roughly: dicts, strings and the message around it.
_EVENT_OVERHEAD_BYTES = 600


@dataclass(slots=True)
class _Input:
    seq: int
    role: Role
    content: list[Block]
    # What was known when it was taken: its place is after that, also while its seq is not known.
    after_seq: int = 0

    @property
    def read_before(self) -> int:
        """A seq of the log before it."""
        return self.seq - 1 if self.seq else self.after_seq


@dataclass(slots=True)
class Conversation:
    """The context of one session, up to `known_seq`. Not to be used by two turns at once."""

    known_seq: int = 0
    size_bytes: int = 0
    # Id of a span.model_request_start that has no end yet.
    open_request: str = ""
    calls: list[Call] = field(default_factory=list)
    # The outcome that is worked on.
    goal: Goal | None = None
    # How far an outside agent is, and whether there is one that answers in the model's place.
    steps: Steps = field(default_factory=Steps)
    by_steps: bool = False
    _sealed: list[Message] = field(default_factory=list)
    _answer: list[Block] = field(default_factory=list)
    _reasoning: list[Block] = field(default_factory=list)
    _inputs: list[_Input] = field(default_factory=list)
    # What the system messages that were read say: it outlives compactions.
    _standing: list[Block] = field(default_factory=list)
    _compacting: bool = False
    # Tokens as the vendor counted them with the newest answer, and an estimate of what was sealed since.
    _counted: int = 0
    _estimated: int = 0
    _answer_is_counted: bool = False

    @property
    def read_seq(self) -> int:
        """The seq up to which every input was read by a model request."""
        return min((waiting.read_before for waiting in self._inputs), default=self.known_seq)

    def tokens(self, fixed_tokens: int) -> int:
        """How long the next request is; `fixed_tokens` estimates what comes with each one, as vendors count it too."""
        waiting = sum(_tokens(waiting.content) for waiting in self._inputs)
        return (self._counted or fixed_tokens) + self._estimated + self._answer_tokens() + waiting

    def read_messages(self) -> list[Message]:
        """The context without the inputs that wait: what a compaction summarises."""
        messages = self._sealed.copy()
        self._push_answer(messages)
        return messages

    def standing_instructions(self) -> list[Block]:
        """What the system messages among them say."""
        return self._standing.copy()

    def messages(self) -> list[Message]:
        """The context for the next model request: all that is known, unread inputs included."""
        messages = self.read_messages()
        for waiting in self._inputs:
            push(messages, waiting.role, waiting.content)
        return messages

    def open_calls(self) -> list[Call]:
        """Calls of the newest answer that have no result, in order."""
        return [call for call in self.calls if call.result is None]

    def needs_answer(self) -> bool:
        """Whether a model request would have something to react to."""
        if self.by_steps:
            return bool(self.calls) or not self.steps.settled or any(each.role == "user" for each in self._inputs)
        return bool(self._inputs or self.calls) or not self._answer

    def step_seq(self) -> int:
        """The seq up to which the next step reads: what the user says waits while the agent works on calls."""
        if not self.steps.settled:
            # A repeat reads nothing new.
            return self.read_seq
        if not self.calls:
            return self.known_seq
        return next((each.read_before for each in self._inputs if each.role == "user"), self.known_seq)

    def said(self) -> list[Block]:
        """The text of the newest answer."""
        return [block for block in self._answer if block["type"] == "text"]

    def has_unread_input(self) -> bool:
        """Whether inputs wait that no model request has read, and that ask for an answer."""
        return any(not self.by_steps or waiting.role == "user" for waiting in self._inputs)

    def unread_texts(self) -> list[tuple[int, str]]:
        """What inputs of people that no model request has read say, by seq."""
        waiting = [each for each in self._inputs if each.role == "user" and each.seq]
        return [(each.seq, "\n".join(block.get("text", "") for block in each.content)) for each in waiting]

    def settle_own_inputs(self) -> None:
        """What the turn itself told the model, in the journal's last append, is stored: it has its place in the log."""
        for waiting in self._inputs:
            waiting.seq = waiting.seq or self.known_seq

    def remember_reasoning(self, blocks: Iterable[Block]) -> None:
        """Keep the vendor's reasoning of the newest answer for as long as this process has the conversation."""
        self._reasoning = list(blocks)

    def apply_stored(self, seq: int, event_id: str, event_type: str, body: bytes) -> None:
        """Take an event of the log. One that was taken before is skipped by its seq."""
        if seq <= self.known_seq:
            return
        self.known_seq = seq
        if event_type in _HANDLERS:
            self.apply(event_id, event_type, orjson.loads(body), seq, size_bytes=len(body))

    def apply(
        self, event_id: str, event_type: str, fields: Mapping[str, Any], seq: int = 0, *, size_bytes: int = 0
    ) -> None:
        """Take an event of our own before it is stored; its seq is not known then, and not needed."""
        if (handler := _HANDLERS.get(event_type)) is not None:
            self.size_bytes += size_bytes + _EVENT_OVERHEAD_BYTES
            handler(self, event_id, fields, seq)

    def _on_request_start(self, event_id: str, fields: Mapping[str, Any], seq: int) -> None:
        self.open_request = event_id
        if self._is_of_compaction(fields):
            return
        self._estimated += self._answer_tokens()
        self._push_answer(self._sealed)
        calls = self.calls
        self._begin_answer()
        read_up_to = fields.get("context_seq", seq)
        count, said = 0, list[Block]()
        for waiting in self._inputs:
            if waiting.seq > read_up_to:
                break
            push(self._sealed, waiting.role, waiting.content)
            if waiting.role == "system":
                self._standing += waiting.content
            else:
                said += waiting.content
            self._estimated += _tokens(waiting.content)
            count += 1
        del self._inputs[:count]
        if (number := fields.get("step")) is not None:
            self.steps.begin(number, calls, said)
            # An outside agent remembers for itself what was said before.
            self._sealed, self.size_bytes = [], 0

    def _on_request_end(self, _event_id: str, fields: Mapping[str, Any], _seq: int) -> None:
        self.open_request = ""
        if self._compacting:
            self._compacting = False
            return
        self.steps.end(fields.get("step_outcome"))
        usage = fields.get("model_usage") or {}
        read = sum(usage.get(name, 0) for name in _READ_TOKENS)
        if read:
            # What an answer that failed had said is not in the log.
            said = usage.get("output_tokens", 0) if self._answer else 0
            self._counted, self._estimated, self._answer_is_counted = read + said, 0, True

    def _on_compacted(self, _event_id: str, fields: Mapping[str, Any], _seq: int) -> None:
        summary = [{"type": "text", "text": INTRODUCTION}, *usable_blocks(fields.get("content"))]
        self._standing = usable_blocks(fields.get("system"))
        self._begin_answer()
        self._sealed = [Message("user", summary)]
        goal = restored(fields.get("outcome"))
        if goal is not None and not self._waits(goal):
            push(self._sealed, "user", [{"type": "text", "text": goal.instruction()}])
        if self.goal is None or not self._waits(self.goal):
            # One that waits may have come after the compaction looked.
            self.goal = goal
        if self._standing:
            self._sealed.append(Message("system", self._standing))
        self._counted, self._estimated = 0, sum(_tokens(message.content) for message in self._sealed)
        kept = [block for waiting in self._inputs for block in waiting.content]
        self.size_bytes = sum(message.size for message in self._sealed) + sum(map(block_chars, kept))
        self.size_bytes += _EVENT_OVERHEAD_BYTES * (len(self._sealed) + len(self._inputs))

    def _waits(self, goal: Goal) -> bool:
        """Whether no model request has read of the goal."""
        return any(waiting.seq == goal.seq for waiting in self._inputs)

    def _is_of_compaction(self, fields: Mapping[str, Any]) -> bool:
        self._compacting = fields.get("purpose") == COMPACTION
        return self._compacting

    def _begin_answer(self) -> None:
        self.calls, self._answer, self._reasoning = [], [], []
        self._answer_is_counted = False

    def _answer_tokens(self) -> int:
        """What the newest answer adds to the tokens that were counted: itself if it was not, and its results."""
        results = sum(block_tokens(call.result or failed_result(call, UNANSWERED)) for call in self.calls)
        return results + (0 if self._answer_is_counted else _tokens(self._answer))

    def _on_agent_message(self, _event_id: str, fields: Mapping[str, Any], _seq: int) -> None:
        self._answer += usable_blocks(fields.get("content"))

    def _on_tool_use(self, event_id: str, fields: Mapping[str, Any], _seq: int) -> None:
        self._add_call(event_id, fields, custom=False)

    def _on_custom_tool_use(self, event_id: str, fields: Mapping[str, Any], _seq: int) -> None:
        self._add_call(event_id, fields, custom=True)

    def _on_mcp_tool_use(self, event_id: str, fields: Mapping[str, Any], _seq: int) -> None:
        call = self._add_call(event_id, fields, custom=False)
        call.server_name, call.server_tool = fields["mcp_server_name"], fields["name"]

    def _add_call(self, event_id: str, fields: Mapping[str, Any], *, custom: bool) -> Call:
        content = fields.get("content") or ()
        block_id = content[0]["id"] if content else event_id
        # The block has what the model said, which for a tool of a server is not what the server calls it.
        name, arguments = (content[0] if content else fields).get("name") or fields["name"], fields["input"]
        permission = "" if custom else fields.get("evaluated_permission", "allow")
        by_worker = fields.get("executor") == WORKER
        call = Call(event_id, block_id, name, arguments, custom, permission, by_worker=by_worker)
        self.calls.append(call)
        self._answer.append({"type": "tool_use", "id": block_id, "name": name, "input": arguments})
        return call

    def _on_tool_result(self, _event_id: str, fields: Mapping[str, Any], seq: int) -> None:
        self._answer_call(fields.get("tool_use_id", ""), fields, seq)

    def _on_mcp_tool_result(self, _event_id: str, fields: Mapping[str, Any], seq: int) -> None:
        self._answer_call(fields.get("mcp_tool_use_id", ""), fields, seq)

    def _on_custom_tool_result(self, _event_id: str, fields: Mapping[str, Any], seq: int) -> None:
        self._answer_call(fields.get("custom_tool_use_id", ""), fields, seq)

    def _answer_call(self, call_id: str, fields: Mapping[str, Any], seq: int) -> None:
        call = self._find_call(call_id)
        # A result that the service wrote first stands, whatever this turn wrote before it heard of that.
        if call is None or (call.result is not None and (call.result_is_stored or not seq)):
            return
        call.result_is_stored = bool(seq)
        call.result = {
            "type": "tool_result",
            "tool_use_id": call.block_id,
            "content": usable_blocks(fields.get("content")),
            "is_error": bool(fields.get("is_error")),
        }

    def _on_confirmation(self, event_id: str, fields: Mapping[str, Any], _seq: int) -> None:
        call = self._find_call(fields.get("tool_use_id", ""))
        if call is not None and call.decision is None:
            call.decision = "allow" if fields.get("result") == "allow" else "deny"
            call.deny_message = fields.get("deny_message") or ""
            call.allowed_by = event_id if call.decision == "allow" else ""

    def _find_call(self, call_id: str) -> Call | None:
        return next((call for call in self.calls if call_id in (call.event_id, call.block_id)), None)

    def _on_user_message(self, _event_id: str, fields: Mapping[str, Any], seq: int) -> None:
        if self.goal is not None and (fields.get("metadata") or {}).get("outcome_id") == self.goal.outcome_id:
            self.goal.revision = ""
        self._add_input(seq, "user", usable_blocks(fields.get("content")))

    def _add_input(self, seq: int, role: Role, blocks: list[Block]) -> None:
        if not blocks:
            return
        place = len(self._inputs)
        # What others sent before our own input was stored stands before it in the log.
        while seq and place and not self._inputs[place - 1].seq:
            place -= 1
        self._inputs.insert(place, _Input(seq, role, blocks, self.known_seq))

    def _on_blocked(self, _event_id: str, fields: Mapping[str, Any], _seq: int) -> None:
        # An input goes as if it had never come; an answer is due, so one that may not be read is replaced.
        self._inputs = [each for each in self._inputs if each.seq not in fields.get("input_seqs", ())]
        for call in self.calls:
            if call.event_id in fields.get("call_ids", ()):
                call.result, call.withheld = failed_result(call, WITHHELD), True

    def _on_define_outcome(self, _event_id: str, fields: Mapping[str, Any], seq: int) -> None:
        self.goal = declared(fields, seq)
        self._add_input(seq, "user", [{"type": "text", "text": self.goal.instruction()}])

    def _on_evaluation(self, event_id: str, event_type: str, fields: Mapping[str, Any], seq: int) -> None:
        # A context that begins at a compaction is told of its goal there, and of an end before that by the end itself.
        if self.goal is not None:
            if fields.get("outcome_id") != self.goal.outcome_id or self.goal.follow(event_id, event_type, fields):
                return
            self.goal = None
        if event_type == END and (text := settling(fields)):
            self._add_input(seq, "user", [{"type": "text", "text": text}])

    def _on_evaluation_start(self, event_id: str, fields: Mapping[str, Any], seq: int) -> None:
        self._on_evaluation(event_id, START, fields, seq)

    def _on_evaluation_ongoing(self, event_id: str, fields: Mapping[str, Any], seq: int) -> None:
        self._on_evaluation(event_id, ONGOING, fields, seq)

    def _on_evaluation_end(self, event_id: str, fields: Mapping[str, Any], seq: int) -> None:
        self._on_evaluation(event_id, END, fields, seq)

    def _on_thread_message(self, _event_id: str, fields: Mapping[str, Any], seq: int) -> None:
        # A thread is told what to do by the one that made it, which hears the answers of its threads by name.
        name = fields.get("from_agent_name")
        told = f"Message from thread {fields.get('from_session_thread_id')} ({name}):"
        head = [{"type": "text", "text": told}] if name else []
        if blocks := usable_blocks(fields.get("content")):
            self._inputs.append(_Input(seq, "user", [*head, *blocks]))

    def _on_system_message(self, _event_id: str, fields: Mapping[str, Any], seq: int) -> None:
        blocks = [block for block in usable_blocks(fields.get("content")) if block["type"] == "text"]
        self._add_input(seq, "system", blocks)

    def _push_answer(self, messages: list[Message]) -> None:
        if not self._answer:
            return
        push(messages, "assistant", self._answer, self._reasoning)
        if self.calls:
            push(messages, "user", [call.result or failed_result(call, UNANSWERED) for call in self.calls])


def _tokens(content: Iterable[Block]) -> int:
    return sum(map(block_tokens, content))


_READ_TOKENS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_HANDLERS = {
    "user.message": Conversation._on_user_message,
    "user.define_outcome": Conversation._on_define_outcome,
    START: Conversation._on_evaluation_start,
    ONGOING: Conversation._on_evaluation_ongoing,
    END: Conversation._on_evaluation_end,
    "system.message": Conversation._on_system_message,
    "session.guardrail_blocked": Conversation._on_blocked,
    "agent.thread_message_received": Conversation._on_thread_message,
    "user.custom_tool_result": Conversation._on_custom_tool_result,
    "user.tool_result": Conversation._on_tool_result,
    "user.tool_confirmation": Conversation._on_confirmation,
    "span.model_request_start": Conversation._on_request_start,
    "span.model_request_end": Conversation._on_request_end,
    "agent.message": Conversation._on_agent_message,
    "agent.tool_use": Conversation._on_tool_use,
    "agent.mcp_tool_use": Conversation._on_mcp_tool_use,
    "agent.mcp_tool_result": Conversation._on_mcp_tool_result,
    "agent.custom_tool_use": Conversation._on_custom_tool_use,
    "agent.tool_result": Conversation._on_tool_result,
    "agent.thread_context_compacted": Conversation._on_compacted,
}
