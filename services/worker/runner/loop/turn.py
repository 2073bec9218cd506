"""One turn, from its grant to its end.

The turn repeats one step until the service says that it is over: run the calls that may run; or park on those that a
client must answer; or ask the model; or end. Every way out is here: an end that the service confirms, a turn given
back, or a lease that is lost, after which nothing is written. A failure of our own becomes a session.error and an end,
so that no session stays running because of it.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import orjson

from kit.telemetry import continue_trace, log
from managed_agents.sessions.v1.turns_pb2 import (
    TURN_END_KIND_BUDGET_REACHED,
    TURN_END_KIND_END_TURN,
    TURN_END_KIND_FAILED,
    TURN_END_KIND_INTERRUPTED,
    TURN_END_KIND_REFUSAL,
    TURN_END_KIND_REQUIRES_ACTION,
    TURN_END_KIND_RETRIES_EXHAUSTED,
    TurnEnd,
    TurnEndKind,
    TurnGrant,
)
from services.worker.runner.loop import recovery, remote, retry, secrets, threads
from services.worker.runner.loop.agent import parse_agent
from services.worker.runner.loop.asking import Answer, Asker
from services.worker.runner.loop.ceiling import Ceiling
from services.worker.runner.loop.compaction import Compactor, NoSummary
from services.worker.runner.loop.context import Call, Conversation
from services.worker.runner.loop.journal import LINGER_SECONDS, Journal
from services.worker.runner.loop.leases import Lease, LeaseLost
from services.worker.runner.loop.outcomes import BudgetSpent, evaluator_of
from services.worker.runner.loop.places import Places
from services.worker.runner.loop.servers import servers_for, using
from services.worker.runner.loop.services import TurnServices
from services.worker.runner.loop.speech import Speech
from services.worker.runner.loop.stopping import StopKind, Stopped, StopSignal
from services.worker.runner.loop.tools import Toolbox, run_call
from services.worker.runner.models.access import Model
from services.worker.runner.models.base import ModelAccess, ModelError, ModelErrorKind, StopReason

DEFAULT_MAX_STEPS = 25
# Failures of our own in one turn, after which it is given back instead of failing on.
_MOST_FAILURES = 3
# What may be settled by the time that the service hears of such an end.
_MAY_GO_ON = (TURN_END_KIND_BUDGET_REACHED, TURN_END_KIND_REQUIRES_ACTION)
_INTERNAL_TEXT = "Something failed inside the platform while it ran this turn. Its log has the cause."


class Turn:
    """One held turn. `run` is its task; `interrupt`, `notice_input`, `hand_over` and `lose` come from outside."""

    def __init__(self, grant: TurnGrant, lease: Lease, services: TurnServices) -> None:
        self.grant = grant
        self.lease = lease
        self.stop = StopSignal()
        # The conversation of a turn that ended well, for the next one; None after any other.
        self.kept: Conversation | None = None
        self._services = services
        agent = grant.session.agent
        self._profile = parse_agent(agent.document_json, agent.model_json, agent.model_id)
        self._secrets = secrets.of_turn(services.secrets, grant, self._write)
        # These share what is known of the session's secrets.
        self._places = Places(services, grant, self._profile, self._write, lambda: self._workspace.roots, lease.check)
        self._servers = servers_for(services.servers, grant, self._profile, self._places.sandbox, self._write)
        self._toolbox = Toolbox(self._profile, self._places.built_in, threads.tools_for(grant), self._servers)
        self._ceiling = Ceiling(grant)
        self._thread = {"session_thread_id": grant.thread_id, "agent_name": self._profile.name}
        self._speech = Speech(services.publish, grant, self._profile.guardrails, services.callout)
        self._remote = remote.of_turn(grant, services.private, self._secrets, self._speech.guardrails)
        self._workspace = services.workspaces.of(grant, self._write, self.stop)
        self._interrupt_seq = self._obeyed_seq = 0
        self._news = self._handing_over = self._over = self._failed = False
        self._steps = self._model_failures = self._failures = 0
        self._run: list[Call] = []
        self._park: list[Call] = []
        self._begun: Call | None = None
        self._conversation: Conversation | None = None
        self.interrupt(grant.interrupt_seq)

    @property
    def over(self) -> bool:
        """Whether the turn has ended, or was given back."""
        return self._over

    def interrupt(self, seq: int) -> None:
        """A user.interrupt is in the log at this seq."""
        if seq > max(self._obeyed_seq, self._interrupt_seq):
            self._interrupt_seq = seq
            self.stop.stop(StopKind.INTERRUPT)

    def notice_input(self) -> None:
        """New input is in the log, to be read before the next model request."""
        self._news = True

    def hand_over(self, *, at_once: bool = False) -> None:
        """Give the turn back after the step that runs, or cut that step off."""
        self._handing_over = True
        if at_once:
            self.stop.stop(StopKind.HAND_OVER)

    def lose(self) -> None:
        """The lease is lost: stop at once and write nothing."""
        self.stop.stop(StopKind.LOST)

    async def run(self) -> None:
        """Run the turn to its end. Raises nothing but a cancellation."""
        task = asyncio.current_task()
        assert task is not None
        self.stop.bind(task)
        session_id = self.lease.session_id
        trace = continue_trace(self.grant.traceparent, "turn", session_id=session_id, epoch=self.lease.epoch)
        try:
            with trace, using(self._servers):
                while not self._over:
                    await self._advance()
        except LeaseLost as lost:
            log.info("turn lost", session_id=session_id, epoch=self.lease.epoch, why=str(lost))
        finally:
            if self._conversation is not None:
                self._journal.discard()

    async def _advance(self) -> None:
        try:
            if self._failed:
                await self._close_failed()
            elif self._conversation is None:
                await self._begin()
            else:
                await self._step()
        except Stopped as stopped:
            await self._obey(stopped)
        except LeaseLost:
            raise
        except Exception as failure:
            await self._note_failure(failure)

    async def _begin(self) -> None:
        await self._load(from_log=False)
        stop_reason = orjson.loads(self.grant.session.stop_reason_json or b"{}")
        resumed = stop_reason.get("type") == "requires_action"
        joins = self._places.joins_still
        plan = recovery.plan(self._loaded, attempt=self.grant.attempt, resumed=resumed, joins=joins)
        self._run, self._park = plan.run, plan.park
        self._places.give_up(call for call in self._loaded.open_calls() if call not in plan.run)
        for event_type, fields in plan.events:
            self._journal.add(event_type, fields)

    async def _load(self, *, from_log: bool) -> None:
        conversation = await self._services.load(self.grant, self.lease, from_log)
        self._journal = Journal(partial(self._services.append, self.lease), self.lease, conversation)
        self._journal.on_answer = self._read_answer
        self._journal.on_failure = self._read_failure
        self._asker = Asker(self._journal, conversation, self._speech, self.stop, self._toolbox)
        self._compactor = Compactor(self._journal, conversation, self.stop, self._toolbox, self._services.window_tokens)
        held = (self.grant, self.lease, self.stop, self._ceiling)
        self._evaluator = evaluator_of(held, self._services, self._journal, conversation, self._profile.model_id)
        conversation.by_steps = self._remote is not None
        self._conversation = conversation

    def _write(self, kind: str, fields: Mapping[str, Any]) -> str:
        return self._journal.add(kind, fields)

    @property
    def _loaded(self) -> Conversation:
        assert self._conversation is not None
        return self._conversation

    def _read_answer(self) -> None:
        self._news = False
        self._workspace.notice(self._journal.session_revision)
        self.interrupt(self._journal.interrupt_seq)

    def _read_failure(self, failure: Exception) -> None:
        if isinstance(failure, LeaseLost):
            self.lose()

    async def _step(self) -> None:
        if self._handing_over and not self._run and not self._park:
            raise Stopped(StopKind.HAND_OVER)
        self.stop.check()
        if self._run:
            await self._run_calls()
        elif self._park:
            await self._end(TURN_END_KIND_REQUIRES_ACTION, event_ids=[call.event_id for call in self._park])
        elif self._loaded.needs_answer():
            if await self._ceiling.is_reached(self._journal):
                await self._end(TURN_END_KIND_BUDGET_REACHED)
            elif await self._speech.guardrails.blocks_input(self._loaded, self._journal, self.stop):
                await self._end(TURN_END_KIND_FAILED)
            else:
                await self._ask()
        elif self._loaded.goal is not None:
            await self._measure()
        else:
            await self._end(TURN_END_KIND_END_TURN)

    async def _measure(self) -> None:
        try:
            await self._evaluator.measure()
        except BudgetSpent:
            await self._end(TURN_END_KIND_BUDGET_REACHED)
        # What the agent does next has all the steps of a turn.
        self._steps = self._model_failures = 0

    async def _run_calls(self) -> None:
        # The calls are in the log before the first of them runs: whatever happens then, they are known.
        await self._journal.flush()
        await self._workspace.ready()
        sandbox = self._places.with_web()
        started = time.monotonic()
        while self._run:
            self.lease.check()
            self._begun = self._run[0]
            place = self._places.of(self._begun, sandbox, self._servers)
            joins = self._places.joins(self._begun)
            await run_call(
                self._begun, self._secrets.over(place), self._journal, self.stop, self._workspace, joins=joins
            )
            self._begun = None
            del self._run[0]
        # Input that came during a long call is read before the model is asked; after a short one, only if there is any.
        if self._news or time.monotonic() - started > LINGER_SECONDS:
            await self._journal.flush()

    async def _ask(self) -> None:
        if self._remote is not None:
            answer = await self._remote.ask(self._journal, self._loaded, self.stop, self._toolbox, await self._prompt())
            return await self._after_answer(answer)
        access: ModelAccess | None = None
        try:
            async with self._services.access.use(self.grant.workspace_id) as model:
                access = model.access
                if self._steps >= int(model.access.options.get("default_max_steps") or DEFAULT_MAX_STEPS):
                    await self._stop_at_limit()
                    return
                answer = await self._ask_model(model)
        except ModelError as error:
            await self._after_model_error(error, access)
            return
        self._model_failures = 0
        if answer is not None:
            self._steps += 1
            self._compactor.note_answer()
            await self._after_answer(answer)

    async def _prompt(self) -> str:
        """The system prompt, with all in place that the agent may use."""
        servers, uses_sandbox = self._servers, self._toolbox.uses_sandbox
        if uses_sandbox or (servers is not None and servers.needs_sandbox):
            await self._workspace.ready()
        if servers is not None:
            with self.stop.scope():
                await servers.ready()
        has_shell = uses_sandbox and self._places.is_here
        notes = await self._secrets.notes(self._workspace.prompt_notes, uses_sandbox=has_shell)
        return self._places.prompt(notes, uses_sandbox=uses_sandbox)

    async def _ask_model(self, model: Model) -> Answer | None:
        """The model's answer; None where its context was compacted first, and the turn is to look again."""
        system = await self._prompt()
        model_id = model.resolve(self._profile.model_id)
        self._journal.default_model = model.access.default_model
        options = {"speed": self._profile.speed, "cache_key": self.lease.session_id}
        if self._compactor.is_due(model_id, system):
            with suppress(NoSummary):
                await self._compactor.compact(model.provider, model_id, system, **options)
            return None
        return await self._asker.ask(model.provider, model_id, system, **options)

    async def _after_answer(self, answer: Answer) -> None:
        assert answer.stop is not None
        if answer.objection is not None or answer.failed:
            await self._end(TURN_END_KIND_FAILED)
            return
        if answer.stop.reason is StopReason.REFUSAL:
            await self._end(TURN_END_KIND_REFUSAL, details=answer.refusal())
            return
        calls = self._loaded.open_calls()
        self._park = [call for call in calls if call.permission != "allow" or call.is_of_thread or call.by_worker]
        self._run = [call for call in calls if call not in self._park]
        # An outside agent may have been sent less than the turn began with.
        waits = self._remote is not None and self._loaded.has_unread_input()
        if not answer.calls and self._loaded.goal is None and not waits:
            await self._end(TURN_END_KIND_END_TURN)

    async def _stop_at_limit(self) -> None:
        message = f"The turn was ended after {self._steps} model requests, the most that one turn may make."
        self._journal.add("session.error", retry.error_fields("tool_use_limit_reached_error", message))
        await self._end(TURN_END_KIND_FAILED)

    async def _after_model_error(self, error: ModelError, access: ModelAccess | None) -> None:
        if error.kind is ModelErrorKind.TOO_LONG and self._compactor.note_refusal():
            return
        self._model_failures += 1
        # The key may have been changed since vault was asked.
        may_be_old = error.kind is ModelErrorKind.AUTHENTICATION and self._model_failures == 1
        if access and may_be_old and await self._services.access.refresh(self.grant.workspace_id, access.revision):
            return
        delay = self._services.retry_policy.delay(self._model_failures, error, random.random)
        log.warning("model request failed", session_id=self.lease.session_id, error=error.message, retry_in=delay)
        kind, message = retry.error_type(error), retry.error_message(error, access)
        if delay is None:
            # A context that is too long is no reason against another turn, with another model or other words.
            is_final = not error.retryable and error.kind is not ModelErrorKind.TOO_LONG
            self._journal.add("session.error", retry.error_fields(kind, message))
            await self._end(TURN_END_KIND_FAILED if is_final else TURN_END_KIND_RETRIES_EXHAUSTED)
            return
        self._journal.add("session.error", retry.error_fields(kind, message, asks_again=True))
        self._tell_status("rescheduled")
        await self._journal.flush()
        with self.stop.scope():
            await asyncio.sleep(delay)
        self._tell_status("running")

    def _tell_status(self, status: str) -> None:
        # The log of a thread tells nothing of the session as a whole.
        if not self.grant.root_session_id:
            self._journal.add(f"session.status_{status}", {})
        self._journal.add(f"session.thread_status_{status}", self._thread)

    async def _end(
        self,
        kind: TurnEndKind.ValueType,
        *,
        event_ids: Sequence[str] = (),
        details: bytes = b"",
        interrupt_seq: int = 0,
    ) -> None:
        if kind == TURN_END_KIND_END_TURN and (answer := threads.answer_of(self.grant, self._loaded)):
            self._journal.add("agent.thread_message_sent", answer)
        await self._workspace.before_idle()
        response = await self._journal.flush(
            TurnEnd(kind=kind, event_ids=event_ids, stop_details_json=details, interrupt_seq=interrupt_seq)
        )
        assert response is not None
        if response.ended:
            self._over = True
            self.kept = self._conversation
            return
        # Input waited that the turn had not read: it goes on with that. Or there is budget again, or threads answered.
        if not self._loaded.has_unread_input() and kind not in _MAY_GO_ON:
            raise RuntimeError("the service lets a turn go on that has nothing to read")
        self._run, self._park = [], []
        self._steps = self._model_failures = 0

    async def _obey(self, stopped: Stopped) -> None:
        try:
            if stopped.by_user:
                await self._close_interrupted()
            else:
                await self._give_back()
        except LeaseLost:
            raise
        except Exception as failure:
            await self._note_failure(failure)

    async def _close_interrupted(self) -> None:
        if self.grant.attempt > 1:
            # This attempt has stopped its own; one before it may have left others.
            self._places.give_up(self._loaded.open_calls())
        for call in self._loaded.open_calls():
            self._journal.add(*recovery.tool_result(call, recovery.INTERRUPTED))
        self._run, self._park, self._begun = [], [], None
        self._obeyed_seq = self._interrupt_seq
        self.stop.clear_interrupt()
        await self._end(TURN_END_KIND_INTERRUPTED, interrupt_seq=self._obeyed_seq)

    async def _give_back(self) -> None:
        left = [call for call in self._run if self._places.joins(call)]
        for call in self._run:
            if call in left:
                continue
            text = recovery.OUTCOME_UNKNOWN if call is self._begun else recovery.NOT_BEGUN
            self._journal.add(*recovery.tool_result(call, text))
        if self._park and not left:
            await self._end(TURN_END_KIND_REQUIRES_ACTION, event_ids=[call.event_id for call in self._park])
        if not self._over:
            await self._journal.flush()
            await self._services.release(self.lease, bool(left))
            self._over = True

    async def _note_failure(self, failure: Exception) -> None:
        self._failed = True
        self._failures += 1
        log.error("turn failed", session_id=self.lease.session_id, epoch=self.lease.epoch, exc_info=failure)
        if self._failures >= _MOST_FAILURES:
            # Another runner may fare better, once the lease is over. Not given back, as that counts no attempt: the
            # service has to end a turn some time that no runner can end.
            self._over = True

    async def _close_failed(self) -> None:
        # What the journal could not write is gone, so only the log can tell what is open.
        if self._conversation is not None:
            self._journal.discard()
        await self._load(from_log=True)
        # It may have failed before it came to what an attempt before it had left to it.
        self._places.give_up(self._loaded.open_calls())
        for event_type, fields in recovery.plan(self._loaded, attempt=1, resumed=False).events:
            self._journal.add(event_type, fields)
        self._journal.add("session.error", retry.error_fields("internal_error", _INTERNAL_TEXT))
        self._failed = False
        await self._end(TURN_END_KIND_FAILED)
