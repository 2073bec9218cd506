"""Steps follow from the log alone: numbers are dense, a repeat says the same, and nothing is posted in two steps."""

from dataclasses import asdict
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.steps import ANSWERED, FAILED, INTERRUPTED, Steps


def text(value: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": value}]


class Session:
    """A log that grows, the conversation that follows it, and what was posted."""

    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.conversation = self._fresh()
        self.posted: list[tuple[int, str, Any]] = []
        self.said: list[str] = []
        self._made = 0

    @staticmethod
    def _fresh() -> Conversation:
        conversation = Conversation()
        conversation.by_steps = True
        return conversation

    def add(self, kind: str, **fields: Any) -> str:
        event = {"id": f"e{len(self.log) + 1}", "type": kind, **fields}
        self.log.append(event)
        self._apply(self.conversation, len(self.log), event)
        return event["id"]

    @staticmethod
    def _apply(conversation: Conversation, seq: int, event: dict[str, Any]) -> None:
        conversation.apply_stored(seq, event["id"], event["type"], orjson.dumps(event))

    def say(self) -> None:
        self.said.append(f"word{len(self.said)}")
        self.add("user.message", content=text(self.said[-1]))

    def rule(self) -> None:
        self.add("system.message", content=text("rule"))

    def step(self, outcome: str, calls: int) -> None:
        """One step, if one is due, as the loop makes it; `outcome` empty stands for a crash."""
        if not self.conversation.needs_answer():
            return
        steps = self.conversation.steps
        number = steps.next_number
        start = self.add("span.model_request_start", context_seq=self.conversation.step_seq(), step=number)
        steps = self.conversation.steps
        assert (steps.message is None) != (steps.results is None)
        if steps.message is None:
            self.posted.append((number, "results", [asdict(each) for each in steps.results or ()]))
        else:
            self.posted.append((number, "message", steps.message))
        ids: list[tuple[str, str]] = []
        if outcome == ANSWERED:
            if not calls:
                self.add("agent.message", content=text("reply"))
            for _ in range(calls):
                self._made += 1
                block = {"type": "tool_use", "id": f"c{self._made}", "name": "bash", "input": {}}
                ids.append((self.add("agent.tool_use", name="bash", input={}, content=[block]), block["id"]))
        end: dict[str, Any] = {"model_request_start_id": start, "is_error": outcome in ("", FAILED)}
        self.add("span.model_request_end", **end | ({"step_outcome": outcome} if outcome else {}))
        for event_id, block_id in ids:
            self.add("agent.tool_result", tool_use_id=event_id, content=text(f"out {block_id}"), is_error=False)

    def check(self) -> None:
        rebuilt = self._fresh()
        for seq, event in enumerate(self.log, 1):
            self._apply(rebuilt, seq, event)
        assert rebuilt.steps == self.conversation.steps
        assert rebuilt.needs_answer() == self.conversation.needs_answer()
        first: dict[int, tuple[str, Any]] = {}
        for number, kind, content in self.posted:
            assert first.setdefault(number, (kind, content)) == (kind, content), "a repeat says something else"
        assert list(first) == list(range(1, len(first) + 1))
        heard = [word for kind, content in first.values() if kind == "message" for word in content.split("\n\n")]
        assert heard == self.said[: len(heard)], "what is said is posted once, in its order"
        results = [each["id"] for kind, content in first.values() if kind == "results" for each in content]
        assert results == sorted(set(results), key=lambda name: int(name[1:]))
        assert all(
            each["value"] == f"out {each['id']}" for kind, told in first.values() if kind == "results" for each in told
        )


OPERATIONS = st.one_of(
    st.just(("say",)),
    st.just(("rule",)),
    st.tuples(
        st.just("step"), st.sampled_from((ANSWERED, ANSWERED, ANSWERED, FAILED, INTERRUPTED, "")), st.integers(0, 3)
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(OPERATIONS, max_size=40))
def test_whatever_happens_each_step_says_one_thing_and_each_thing_is_said_once(
    operations: list[tuple[Any, ...]],
) -> None:
    session = Session()
    for name, *arguments in operations:
        getattr(session, name)(*arguments)
    session.check()
    # Once everything is answered, everything was posted.
    while session.conversation.needs_answer():
        session.step(ANSWERED, 0)
    session.check()
    heard = [word for _, kind, content in session.posted if kind == "message" for word in content.split("\n\n")]
    assert list(dict.fromkeys(heard)) == session.said


def test_rounds_count_from_what_the_user_said_last_and_a_repeat_is_none() -> None:
    session = Session()
    session.say()
    session.step(ANSWERED, 1)
    session.step("", 0)
    session.step(ANSWERED, 2)
    session.step(FAILED, 0)
    assert session.conversation.steps.rounds == 2
    session.say()
    session.step("", 0)
    assert (session.conversation.steps.rounds, session.conversation.steps.number) == (0, 4)


def test_a_session_of_another_engine_has_no_steps() -> None:
    session = Session()
    session.conversation.by_steps = False
    session.say()
    session.add("span.model_request_start", context_seq=1)
    session.add("span.model_request_end", model_request_start_id="e2", is_error=False)
    assert session.conversation.steps == Steps()


def test_what_the_agent_remembers_for_itself_is_not_kept() -> None:
    session = Session()
    sizes = []
    for _ in range(5):
        for _ in range(20):
            session.say()
        session.step(ANSWERED, 3)
        session.step(ANSWERED, 0)
        sizes.append(session.conversation.size_bytes)
    assert max(sizes) < 1.1 * sizes[0] and session.conversation.read_messages()[:-1] == []
