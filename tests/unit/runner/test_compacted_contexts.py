"""Random logs with compactions at any legal point: what both vendors are sent is valid, and nothing is lost.

The logs are those that a runner and its clients can leave: a compaction only where no call is open, inputs at any time,
requests that read less than what is in the log, answers that break off, summaries that fail.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.runner.loop.compaction import COMPACTION
from services.worker.runner.loop.context import Conversation
from services.worker.runner.models.anthropic import AnthropicModel
from services.worker.runner.models.base import ModelAccess, ModelRequest, ToolDefinition
from services.worker.runner.models.openai import OpenAIModel
from services.worker.runner.models.summary import INTRODUCTION

TOOL = ToolDefinition("bash", "Runs a command.", {"type": "object"})
Event = dict[str, Any]
# How what a goal says to the agent begins.
OF_GOALS = ("Bring about this outcome", "The outcome was measured", "Measured: ")


def text(value: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": value}]


@dataclass
class Log:
    """A log while it grows, and what it says about itself."""

    events: list[Event] = field(default_factory=list)
    conversation: Conversation = field(default_factory=Conversation)
    # For each compaction: up to which seq its summary had read, its own seq, and what waited unread.
    compactions: list[tuple[int, int, list[str]]] = field(default_factory=list)

    def add(self, event_type: str, **fields: Any) -> str:
        event_id = f"e{len(self.events) + 1}"
        event = {"id": event_id, "type": event_type, "seq": len(self.events) + 1, **fields}
        self.events.append(event)
        self.conversation.apply_stored(event["seq"], event_id, event_type, orjson.dumps(event))
        return event_id

    def say(self, event_type: str) -> None:
        self.add(event_type, content=text(f"{event_type[0]}{len(self.events)}"))

    def end(self, start_id: str, tokens: int = 0, *, is_error: bool = False) -> None:
        usage = {"input_tokens": tokens, "output_tokens": tokens and 10}
        self.add("span.model_request_end", model_request_start_id=start_id, model_usage=usage, is_error=is_error)


class Player:
    """Draws what happens next."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.log = Log()
        # User messages that no request has read.
        self.waiting: list[str] = []

    def play(self) -> Log:
        for _ in range(self.draw(st.integers(1, 14))):
            self.maybe_input()
            if self.log.conversation.open_calls():
                self.answer_calls()
            elif self.log.conversation.goal is not None and not self.draw(st.integers(0, 2)):
                self.evaluate()
            elif self.draw(st.integers(0, 2)):
                self.request()
            else:
                self.compact()
        self.maybe_input()
        return self.log

    def maybe_input(self) -> None:
        for _ in range(self.draw(st.integers(0, 2))):
            self.waiting = [*self.waiting, f"u{len(self.log.events)}"]
            self.log.say("user.message")
            if not self.draw(st.integers(0, 3)):
                self.log.say("system.message")
        if self.log.conversation.goal is None and not self.draw(st.integers(0, 5)):
            rubric = {"type": "text", "content": "short"}
            number = len(self.log.events)
            self.log.add("user.define_outcome", outcome_id=f"o{number}", description=f"d{number}", rubric=rubric)

    def evaluate(self) -> None:
        """The work is measured, whether or not more came in between."""
        goal = self.log.conversation.goal
        assert goal is not None
        about = {"outcome_id": goal.outcome_id, "iteration": goal.iteration}
        if not goal.start_id:
            self.log.add("span.outcome_evaluation_start", **about)
        if self.draw(st.booleans()):
            return
        result = self.draw(st.sampled_from(("satisfied", "needs_revision", "max_iterations_reached")))
        self.log.add("span.outcome_evaluation_end", **about, result=result, explanation="more")
        if result == "needs_revision" and self.draw(st.booleans()):
            self.log.add("user.message", content=text("Measured: more"), metadata=about)

    def request(self) -> None:
        known = self.draw(st.integers(self.log.conversation.read_seq, len(self.log.events)))
        start_id = self.log.add("span.model_request_start", context_seq=known)
        self.waiting = [value for value in self.waiting if int(value[1:]) >= known]
        self.maybe_input()
        outcome = self.draw(st.sampled_from(("text", "calls", "both", "nothing", "error", "open")))
        if outcome in ("text", "both"):
            self.log.add("agent.message", content=text(f"a{len(self.log.events)}"))
        if outcome in ("calls", "both"):
            for _ in range(self.draw(st.integers(1, 3))):
                block = {"type": "tool_use", "id": f"t{len(self.log.events)}", "name": "bash", "input": {"n": 1}}
                self.log.add("agent.tool_use", name="bash", input=block["input"], content=[block])
        if outcome != "open":
            self.log.end(start_id, self.draw(st.integers(0, 1)) * 500, is_error=outcome == "error")

    def answer_calls(self) -> None:
        for call in self.log.conversation.open_calls():
            self.maybe_input()
            self.log.add("agent.tool_result", tool_use_id=call.event_id, content=text("r"), is_error=False)

    def compact(self) -> None:
        read_seq = self.log.conversation.read_seq
        start_id = self.log.add("span.model_request_start", context_seq=read_seq, purpose=COMPACTION)
        carried = self.carried()
        self.maybe_input()
        if self.draw(st.booleans()):
            # What came since the request began may have reached the runner, or only the log.
            carried = self.carried() if self.draw(st.booleans()) else carried
            summary = text(f"summary{len(self.log.events)}")
            self.log.add("agent.thread_context_compacted", content=summary, context_seq=read_seq, **carried)
            self.log.compactions.append((read_seq, len(self.log.events), self.waiting))
            self.log.end(start_id, 400)
        else:
            self.log.end(start_id, is_error=True)

    def carried(self) -> dict[str, Any]:
        goal = self.log.conversation.goal
        return {
            "system": self.log.conversation.standing_instructions(),
            "outcome": goal.dump() if goal is not None else None,
        }


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A log that a runner and its clients can leave."""
    return Player(draw).play()


def build(events: list[Event]) -> Conversation:
    conversation = Conversation()
    for event in events:
        conversation.apply_stored(event["seq"], event["id"], event["type"], orjson.dumps(event))
    return conversation


def told(conversation: Conversation) -> dict[str, Any]:
    """Everything that a turn reads from a conversation."""
    return {
        "messages": [(message.role, [dict(block) for block in message.content]) for message in conversation.messages()],
        "tokens": conversation.tokens(7),
        "read_seq": conversation.read_seq,
        "known_seq": conversation.known_seq,
        "standing": conversation.standing_instructions(),
        "open_calls": [call.event_id for call in conversation.open_calls()],
        "open_request": conversation.open_request,
        "needs_answer": conversation.needs_answer(),
        "unread": conversation.has_unread_input(),
        "goal": conversation.goal.dump() if conversation.goal is not None else None,
    }


ANTHROPIC = AnthropicModel(ModelAccess("anthropic", api_key="k"))
OPENAI = OpenAIModel(ModelAccess("openai", api_key="k"))


def assert_anthropic_takes(messages: list[dict[str, Any]]) -> None:
    assert messages[0]["role"] == "user"
    for before, after in pairwise(messages):
        assert before["role"] != after["role"]
        if after["role"] == "system":
            assert before["role"] == "user"
        if before["role"] == "system":
            assert after["role"] == "assistant"
    calls: list[str] = []
    for message in messages:
        assert message["content"]
        results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        assert results == calls
        assert all(block["type"] == "tool_result" for block in message["content"][: len(results)])
        calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        assert not calls or message["role"] == "assistant"
    assert not calls


def assert_openai_takes(messages: list[dict[str, Any]]) -> None:
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            continue
        assert not waiting
        assert message["content"] or message.get("tool_calls")
        waiting = [call["id"] for call in message.get("tool_calls", ())]
    assert not waiting


@settings(max_examples=200, deadline=None)
@given(logs())
def test_both_vendors_take_every_context(log: Log) -> None:
    messages = log.conversation.messages()
    if not messages:
        return
    request = ModelRequest("m", "Be brief.", messages, [TOOL])
    if messages[0].role != "assistant":
        assert_anthropic_takes(ANTHROPIC.body(request)["messages"])
    assert_openai_takes(OPENAI.body(request)["messages"])


@settings(max_examples=200, deadline=None)
@given(logs())
def test_a_context_is_the_same_built_from_its_compaction_on(log: Log) -> None:
    for read_seq, compacted_seq, _ in log.compactions:
        for end in {compacted_seq, compacted_seq + 1, len(log.events)}:
            if end <= len(log.events):
                assert told(build(log.events[read_seq:end])) == told(build(log.events[:end]))


@settings(max_examples=200, deadline=None)
@given(logs())
def test_nothing_is_lost_after_a_compaction_and_nothing_of_before_stays(log: Log) -> None:
    _, compacted_seq, waiting = log.compactions[-1] if log.compactions else (0, 0, [])
    summary = [INTRODUCTION, log.events[compacted_seq - 1]["content"][0]["text"]] if compacted_seq else []

    def texts(event_type: str, after: int) -> list[str]:
        events = [event for event in log.events[after:] if event["type"] == event_type]
        said = [event["content"][0]["text"] for event in events]
        return [value for value in said if not value.startswith(OF_GOALS)]

    seen: dict[str, list[str]] = {"user": [], "assistant": [], "system": []}
    for message in log.conversation.messages():
        seen[message.role] += [block["text"] for block in message.content if block["type"] == "text"]
    seen["user"] = [value for value in seen["user"] if not value.startswith(OF_GOALS)]
    assert seen["user"] == [*summary, *waiting, *texts("user.message", compacted_seq)]
    assert seen["assistant"] == texts("agent.message", compacted_seq)
    assert seen["system"] == texts("system.message", 0)


@settings(max_examples=100, deadline=None)
@given(logs(), st.data())
def test_events_that_come_twice_or_are_looked_at_change_nothing(log: Log, data: st.DataObject) -> None:
    conversation = Conversation()
    for event in log.events:
        for _ in range(data.draw(st.integers(1, 2))):
            conversation.apply_stored(event["seq"], event["id"], event["type"], orjson.dumps(event))
        if data.draw(st.booleans()):
            told(conversation)
            conversation.read_messages()
    assert told(conversation) == told(log.conversation)
