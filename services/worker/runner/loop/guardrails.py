"""An agent's guardrails at work: what people send is checked before the model reads it, what the model says before
anybody does.

A side's checks run in this order, and the first that objects decides: the length, the patterns, the endpoint. An
endpoint that can't be asked, answers too late or not as it should counts as an objection, unless the agent says
`on_failure: allow`. Patterns take time in proportion to the text, which is still seconds where both are large: they
are matched beside the event loop, which every turn of the runner needs, and within a time limit.

What is checked is text: of messages, of answers to the agent's questions, of reasons why a call was denied, and of the
agent's own messages, each whole and by itself. Pictures, documents and what tools return are not looked at, nor what a
call passes to a tool.

An objection ends the turn. The log then has a `session.guardrail_blocked`, which keeps the input out of this and every
later context, and a `session.error` with the same code. Of an answer that was refused the log has nothing, and its
calls are not made.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kit.telemetry import log, tracer
from services.worker.runner.loop import retry
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.journal import Journal
from services.worker.runner.loop.stopping import StopSignal
from services.worker.runner.web.callout import NoAnswer

BLOCKED = "session.guardrail_blocked"
INPUT, OUTPUT = "input", "output"
_PATTERN_MEMORY_BYTES = 4 * 1024 * 1024
# How long the patterns of a side may take for one text.
MATCH_SECONDS = 30.0
# More than there are cores, so that short checks get their share of time beside long ones.
_MATCHERS = ThreadPoolExecutor(16, "guardrails")
_MAX_CODE_CHARACTERS = 64
_MAX_MESSAGE_CHARACTERS = 500
_MESSAGES = {
    INPUT: "This was not passed on: it goes against what the agent may be asked.",
    OUTPUT: "The answer was withheld: it goes against what the agent may say.",
}

# URL, what to send, seconds → the answer; NoAnswer where there is none.
Callout = Callable[[str, Mapping[str, Any], float], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Objection:
    """Why something is not let through."""

    side: str
    code: str
    message: str


class Guardrails:
    """The checks of one turn."""

    def __init__(self, checks: Mapping[str, Any], callout: Callout | None, identity: Mapping[str, Any]) -> None:
        """`identity` names session and agent to an endpoint."""
        self._checks = checks
        self._callout = callout
        self._identity = identity

    @property
    def withholds(self) -> bool:
        """Whether nothing of an answer may be told before it is whole."""
        return OUTPUT in self._checks

    async def blocks_input(self, conversation: Conversation, journal: Journal, stop: StopSignal) -> bool:
        """Whether what people sent is objected to. What is has left the context then, and the log says so."""
        if INPUT not in self._checks:
            return False
        objections: list[Objection] = []
        seqs: list[int] = []
        calls: list[str] = []
        with stop.scope(), tracer().start_as_current_span("guardrail.input"):
            for seq, text in conversation.unread_texts():
                if found := await self._objection(INPUT, text):
                    objections.append(found)
                    seqs.append(seq)
            for call_id, text in _answers(conversation):
                if found := await self._objection(INPUT, text):
                    objections.append(found)
                    calls.append(call_id)
        if objections:
            tell(journal, objections[0], input_seqs=seqs, call_ids=calls)
        return bool(objections)

    async def objection_to(self, text: str) -> Objection | None:
        """What speaks against an answer."""
        with tracer().start_as_current_span("guardrail.output"):
            return await self._objection(OUTPUT, text)

    async def _objection(self, side: str, text: str) -> Objection | None:
        checks = self._checks[side]
        most = checks.get("max_characters")
        if most is not None and len(text) > most:
            return _objection(side, f"{side}_too_long", checks)
        try:
            async with asyncio.timeout(MATCH_SECONDS):
                for entry in checks.get("deny_patterns") or ():
                    if await _matches(entry["pattern"], text):
                        return _objection(side, f"{side}_pattern_denied", entry, checks)
        except TimeoutError:
            log.warning("the patterns of a guardrail took too long", side=side, seconds=MATCH_SECONDS)
            return _unavailable(side)
        endpoint = checks.get("endpoint")
        return await self._ask(side, text, endpoint, checks) if endpoint else None

    async def _ask(
        self, side: str, text: str, endpoint: Mapping[str, Any], checks: Mapping[str, Any]
    ) -> Objection | None:
        asked = {"side": side, "text": text, **self._identity}
        try:
            if self._callout is None:
                raise NoAnswer("this runner asks no endpoints")
            answer = await self._callout(endpoint["url"], asked, float(endpoint["timeout_seconds"]))
            allowed = answer.get("allow") if isinstance(answer, dict) else None
            if not isinstance(allowed, bool):
                raise NoAnswer("its answer has no `allow` that is true or false")
        except NoAnswer as failed:
            log.warning("a guardrail could not be asked", side=side, why=str(failed), then=endpoint["on_failure"])
            if endpoint["on_failure"] == "allow":
                return None
            return _unavailable(side)
        return None if allowed else _objection(side, f"{side}_denied", _told(answer), checks)


def tell(journal: Journal, objection: Objection, **withheld: Any) -> None:
    """Write down that something was not let through."""
    said = {"side": objection.side, "code": objection.code, "message": objection.message}
    journal.add(BLOCKED, said | {name: ids for name, ids in withheld.items() if ids})
    journal.add("session.error", retry.error_fields(objection.code, objection.message))


def _answers(conversation: Conversation) -> Iterator[tuple[str, str]]:
    """What people answered to the calls of the newest answer, by call."""
    for call in conversation.calls:
        if call.withheld:
            continue
        if call.custom and call.result is not None:
            yield call.event_id, _text(call.result.get("content"))
        elif call.deny_message:
            yield call.event_id, call.deny_message


def _text(content: Any) -> str:
    blocks = content if isinstance(content, list) else []
    return "\n".join(block["text"] for block in blocks if block.get("type") == "text")


def _objection(side: str, code: str, *told: Mapping[str, Any]) -> Objection:
    """An objection in the words of the first that has any."""
    code = next((each["code"] for each in told if each.get("code")), code)
    return Objection(side, code, next((each["message"] for each in told if each.get("message")), _MESSAGES[side]))


def _unavailable(side: str) -> Objection:
    return Objection(side, f"{side}_check_unavailable", "A check that this agent needs can't be made now.")


def _told(answer: Mapping[str, Any]) -> dict[str, str]:
    """What an endpoint wants to be told, as far as it can be."""
    told: dict[str, str] = {}
    code, message = answer.get("code"), answer.get("message")
    if isinstance(code, str) and 0 < len(code) <= _MAX_CODE_CHARACTERS and code.replace("_", "a").isalnum():
        told["code"] = code
    if isinstance(message, str) and message.strip():
        told["message"] = message[:_MAX_MESSAGE_CHARACTERS]
    return told


async def _matches(pattern: str, text: str) -> bool:
    # Who stops waiting leaves the thread to its one pattern; the engine runs without the interpreter's lock.
    return await asyncio.get_running_loop().run_in_executor(_MATCHERS, search, pattern, text)


def search(pattern: str, text: str) -> bool:
    """Whether a pattern matches somewhere in a text. Takes its time, in proportion to both."""
    # Loaded with the first agent that has patterns; compiled ones are kept by the engine's own cache.
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY_BYTES
    return re2.search(pattern, text.encode("utf-8", "replace").decode(), options=options) is not None
