"""A turn whose engine is an outside agent: each model request is one step of the HTTP agent protocol.

The step is in the log, with its number, before it is posted, so one that a crash repeats has the same number, key and
content. What the agent answers becomes the same events as a model's answer, and its calls are judged, confirmed and run
as any; only tokens are not told, since nobody knows them. An answer that asks for more rounds of calls than the engine
allows is not run: the turn ends with the protocol's own words.
"""

import time
from collections.abc import Mapping

import orjson

from kit import failpoints
from kit.addresses import PrivateHosts
from kit.http_engine import HTTP_ENGINE, REFERENCE, HttpEngine, names_in
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop import recovery, retry
from services.worker.runner.loop.asking import Answer
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.guardrails import Guardrails, Objection, tell
from services.worker.runner.loop.journal import Journal
from services.worker.runner.loop.secrets import TurnSecrets
from services.worker.runner.loop.steps import ANSWERED, FAILED, INTERRUPTED
from services.worker.runner.loop.stopping import Stopped, StopSignal
from services.worker.runner.loop.tools import Toolbox
from services.worker.runner.models.base import ModelError, ModelErrorKind, Stop, StopReason, ToolCall
from services.worker.runner.models.http_agent import HttpAgent, NotPosted, Step, StepAnswer
from services.worker.runner.models.text import plain_text
from services.worker.sandbox.placeholders import SecretsUnavailable

# What a runner has beside the loop of its own.
LOOP_ENGINES = (HTTP_ENGINE,)
BUDGET_REPLY = "[agent exceeded its step budget for this turn]"


def of_turn(
    grant: TurnGrant, private: PrivateHosts, secrets: TurnSecrets, guardrails: Guardrails
) -> "RemoteAgent | None":
    """The outside agent that a session's turns are run by; None where they are run here."""
    if grant.session.loop_engine != HTTP_ENGINE:
        return None
    engine = HttpEngine.of(orjson.loads(grant.session.loop_engine_options_json))
    return RemoteAgent(engine, HttpAgent(engine, private), secrets, guardrails, grant.session.id)


class RemoteAgent:
    """The outside agent of one turn."""

    def __init__(
        self, engine: HttpEngine, agent: HttpAgent, secrets: TurnSecrets, guardrails: Guardrails, session_id: str
    ) -> None:
        self._engine = engine
        self._agent = agent
        self._secrets = secrets
        self._guardrails = guardrails
        self._session_id = session_id

    async def ask(
        self, journal: Journal, conversation: Conversation, stop: StopSignal, toolbox: Toolbox, system: str
    ) -> Answer:
        """Make the step that is due. Of one that failed the log has one session.error. Raises Stopped."""
        stop.check()
        number = conversation.steps.next_number
        fields = {"context_seq": conversation.step_seq(), "step": number}
        start_id = journal.add("span.model_request_start", fields)
        step = Step(
            number,
            self._session_id,
            "\n\n".join(text for text in (system, plain_text(conversation.standing_instructions())) if text),
            toolbox.definitions,
            conversation.steps.message,
            conversation.steps.results,
        )
        rounds, started = conversation.steps.rounds, time.monotonic()
        # Whatever happens from here on, a repeat has this number and content.
        await journal.flush()
        try:
            with stop.scope():
                await failpoints.point("runner.step.before_post")
                answer = self._scrubbed(await self._agent.post(step, await self._headers()))
                objection = await self._objection(answer)
                await failpoints.point("runner.step.answered")
        except Stopped as stopped:
            _write_end(journal, start_id, number, INTERRUPTED if stopped.by_user else "", is_error=not stopped.by_user)
            raise
        except ModelError as error:
            _write_end(journal, start_id, number, "" if isinstance(error, NotPosted) else FAILED)
            told = retry.error_fields(retry.error_type(error), self._secrets.scrub(error.message))
            journal.add("session.error", told)
            return Answer(failed=True, stop=Stop(StopReason.END_TURN))
        except Exception:
            _write_end(journal, start_id, number, "")
            raise
        if objection is not None:
            _write_end(journal, start_id, number, ANSWERED, is_error=False)
            tell(journal, objection)
            return Answer(objection=objection, stop=Stop(StopReason.END_TURN))
        if answer.calls and rounds >= self._engine.max_rounds:
            answer = StepAnswer(BUDGET_REPLY)
        _write_message(journal, answer, started)
        refusals = toolbox.write_calls(list(answer.calls), journal)
        _write_end(journal, start_id, number, ANSWERED, is_error=False)
        for event_type, refused in refusals:
            journal.add(event_type, refused)
        return Answer(calls=list(answer.calls), stop=Stop(_reason(answer)))

    async def _headers(self) -> Mapping[str, str]:
        """The engine's headers with what the session's vaults hold for this agent's host."""
        headers = self._engine.headers
        names = names_in(headers)
        if not names:
            return headers
        try:
            values = await self._secrets.open_for_header(self._agent.host, self._agent.port, names)
        except SecretsUnavailable as failed:
            raise self._not_posted(str(failed)) from failed
        if missing := sorted(names - values.keys()):
            raise self._not_posted(
                f"no vault of the session holds {', '.join(missing)} as an environment_variable credential that may be"
                f" sent in headers to {self._agent.host}."
            )
        filled = {name: REFERENCE.sub(lambda found: values[found[1]], value) for name, value in headers.items()}
        for name, value in filled.items():
            if not value.isascii() or not value.isprintable():
                raise self._not_posted(f"what the header {name} is filled in with can't stand in a header.")
        return filled

    async def _objection(self, answer: StepAnswer) -> Objection | None:
        """What speaks against telling the reply."""
        if not self._guardrails.withholds or not (answer.reply or "").strip():
            return None
        return await self._guardrails.objection_to(answer.reply or "")

    def _scrubbed(self, answer: StepAnswer) -> StepAnswer:
        """The answer without secrets of the session that the agent repeats."""
        scrub = self._secrets.scrub
        names = [text for call in answer.calls for text in (call.id, call.name)]
        if scrub(names) != names:
            raise self._agent.failed(ModelErrorKind.INVALID_REQUEST, "answered with a secret as the name of a call")
        calls = tuple(ToolCall(call.id, call.name, scrub(call.input)) for call in answer.calls)
        return StepAnswer(scrub(answer.reply), calls)

    def _not_posted(self, why: str) -> NotPosted:
        return NotPosted(ModelErrorKind.AUTHENTICATION, f"{self._agent.name} was not asked: {why}")


def _reason(answer: StepAnswer) -> StopReason:
    return StopReason.TOOL_USE if answer.calls else StopReason.END_TURN


def _write_message(journal: Journal, answer: StepAnswer, started: float) -> None:
    if answer.reply is None or not answer.reply.strip():
        return
    fields = {
        "content": [{"type": "text", "text": answer.reply}],
        "stop_reason": _reason(answer).value,
        "duration_ms": round((time.monotonic() - started) * 1000),
    }
    journal.add("agent.message", fields)


def _write_end(journal: Journal, start_id: str, number: int, outcome: str, *, is_error: bool = True) -> None:
    """The end of a step. Nothing tells the tokens of an outside agent, so none are counted."""
    event_type, fields = recovery.request_end(start_id)
    fields |= {"is_error": is_error, "step": number} | ({"step_outcome": outcome} if outcome else {})
    journal.add(event_type, fields)
