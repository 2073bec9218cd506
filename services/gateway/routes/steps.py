"""The HTTP agent protocol, with our agents behind it: one request per step of a conversation.

The sessions service takes the step, or finds it taken; its answer is read from the log of
the conversation's session. Nothing about a step is kept here, so any gateway may answer it,
also after a restart, and a caller that hangs up changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from kit import failpoints
from kit.errors import Aborted, DeadlineExceeded, DomainError, NotFound, Unavailable, WriteConflict
from managed_agents.sessions.v1.steps_pb2 import TakeStepRequest, TakeStepResponse

from ..errors import InvalidCredential, InvalidRequest
from ..operation import Call, Operation
from ..operation.body import ClientGone
from ..operation.call import KEY_HEADER, MAX_KEY_LENGTH
from ..operation.dispatch import send_json
from ..render.steps import SessionEnded
from ..schemas.steps import StepAnswer, StepTake
from ..streams import Hub, LogWait, StepWait, TurnWait, while_there
from ..streams.line import Line

TAG = "HTTP agent protocol"
MAX_BODY_BYTES = 16 * 1024 * 1024
# The longest that one request waits for its turn; the turn itself has no deadline of ours.
WAIT_SECONDS = 3600.0
# For how long a service that is just coming back is waited for, and the pause between attempts.
PATIENCE_SECONDS, PAUSE_SECONDS = 10.0, 0.2


class StepStillRunning(DeadlineExceeded):
    """The turn goes on, and the time to wait for it is over."""

    reason = "STEP_STILL_RUNNING"


class StepWaitEnded(Unavailable):
    """This gateway stops, so the step is to be sent again."""

    reason = "STEP_WAIT_ENDED"


class StepRoutes:
    """The route that needs the stream hub beside the clients."""

    def __init__(self, hub: Hub, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._hub = hub
        self._wait_seconds = wait_seconds

    async def take_step(self, call: Call) -> Any:
        """POST /v1/agents/{agent_id}/step."""
        key = call.headers.get(KEY_HEADER, "")
        if KEY_HEADER in call.headers and not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise InvalidRequest(f"Idempotency-Key must be 1 to {MAX_KEY_LENGTH} characters long.")
        request = TakeStepRequest(agent_id=call.path["agent_id"], body_json=call.raw_body, key=key)
        return _Step(call, self._hub, request, self._wait_seconds)

    def operations(self) -> tuple[Operation, ...]:
        """The table of this route."""
        return (
            Operation(
                "POST",
                "/v1/agents/{agent_id}/step",
                self.take_step,
                tag=TAG,
                summary="Take a step of a conversation with an agent",
                description="Answers with `reply`, or with `tool_calls` whose results the next step brings. The same"
                " step sent again gets the same answer.",
                body=StepTake,
                response=StepAnswer,
                idempotent_write=True,
                answers_for_turn=True,
                max_body_bytes=MAX_BODY_BYTES,
            ),
        )


class _Step:
    """Takes the step and answers it, for as long as its caller is there."""

    def __init__(self, call: Call, hub: Hub, request: TakeStepRequest, seconds: float) -> None:
        self._call = call
        self._hub = hub
        self._request = request
        self._seconds = seconds
        # Why nobody is to be answered any more, if so.
        self._left: Exception | None = None
        self._wait: LogWait | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        take_off = self._call.guard(self._lock_out)
        line = Line.of(scope)
        try:
            if line is None:
                await while_there(receive, self._serve(send))
                return
            line.watch(self._hang_up)
            await self._serve(send)
        finally:
            take_off()
            if line is not None:
                line.release()

    def _hang_up(self) -> None:
        self._leave(ClientGone())

    def _lock_out(self) -> None:
        self._leave(InvalidCredential("The credential was revoked while the step waited for its answer."))

    def _leave(self, why: Exception) -> None:
        self._left = self._left or why
        if self._wait is not None:
            self._wait.abandon()

    async def _serve(self, send: Send) -> None:
        deadline = asyncio.get_running_loop().time() + self._seconds
        patience = _Patience()
        while True:
            try:
                taken, wait = await self._attempt(deadline)
            except (Unavailable, Aborted) as failure:
                if not self._may_pass(failure) or not await patience.allows_another():
                    raise
                continue
            if isinstance(wait, StepWait):
                await failpoints.point("gateway.step.answered")
                await send_json(send, 200, wait.reading.body(), _headers(taken))
                return
            # The turn that had to end first is over.
            patience = _Patience()

    def _may_pass(self, failure: DomainError) -> bool:
        """Whether another attempt may fare better: after an outage, and where two writes met."""
        if self._left is not None or self._hub.closing:
            return False
        return isinstance(failure, Unavailable) or failure.reason == WriteConflict.reason

    async def _attempt(self, deadline: float) -> tuple[TakeStepResponse, LogWait]:
        """Takes the step, which is harmless if it was taken, and waits for what it has to wait for."""
        if self._hub.closing:
            raise StepWaitEnded("This gateway stops. Send the same step again.")
        taken: TakeStepResponse = await self._call.ask(self._call.clients.steps.TakeStep, self._request)
        await failpoints.point("gateway.step.taken")
        seconds = max(0.0, deadline - asyncio.get_running_loop().time())
        wait: LogWait
        if taken.busy:
            wait = TurnWait(taken.session_id, seconds, after_seq=taken.first_seq)
        else:
            wait = StepWait(taken.session_id, seconds, first_seq=taken.first_seq)
        self._wait = wait
        if self._left is not None:
            raise self._left
        try:
            over = await wait.until_over(self._call, self._hub)
        except NotFound:
            # The log went with the session, and with it the answer.
            raise SessionEnded(
                f"Session {taken.session_id} was deleted, and its conversation takes no further step."
            ) from None
        if not over:
            raise self._unanswered(wait, taken.session_id)
        return taken, wait

    def _unanswered(self, wait: LogWait, session_id: str) -> Exception:
        if self._left is not None:
            return self._left
        if wait.deadline_reached:
            return StepStillRunning(
                f"The turn of session {session_id} goes on. Send the same step again to wait for its answer.",
                session_id=session_id,
            )
        return StepWaitEnded("The step is taken, and this gateway stops. Send the same step again.")


class _Patience:
    """Lets attempts be made again for a while; the platform's own processes come back within it."""

    def __init__(self) -> None:
        self._end = asyncio.get_running_loop().time() + PATIENCE_SECONDS

    async def allows_another(self) -> bool:
        if asyncio.get_running_loop().time() >= self._end:
            return False
        await asyncio.sleep(PAUSE_SECONDS)
        return True


def _headers(taken: TakeStepResponse) -> tuple[tuple[str, str], ...]:
    return (
        ("step-session", taken.session_id),
        ("step-number", str(taken.number)),
        ("step-repeated", "true" if taken.repeated else "false"),
    )
