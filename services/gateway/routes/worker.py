"""The tool protocol of self-hosted workers: claim, accept, heartbeat, complete; and the look into a queue.

A worker comes with its key as a credential, or with `environment_key` in the body. Both scope it to one environment; a
caller without a worker key is not scoped, and sees the whole workspace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import orjson
from starlette.types import Receive, Scope, Send

from kit.errors import NotFound
from managed_agents.sessions.v1.environments_pb2 import GetEnvironmentRequest
from managed_agents.worker.v1 import queue_pb2 as pb

from ..admission.credentials import Authenticator
from ..admission.principal import ANONYMOUS, UNPROVEN
from ..clients import CallContext
from ..errors import InvalidCredential, InvalidRequest
from ..operation import Call, Operation, choice, limit, page
from ..operation.body import ClientGone
from ..operation.call import Admitted
from ..operation.dispatch import send_json
from ..render.splice import text_or_null
from ..render.worker import TAKEN, render_counts, render_lease, render_work_item
from ..schemas.worker import WorkClaim, WorkItem, WorkItemPage, WorkLease, WorkMark, WorkReport, WorkTaken
from ..streams.line import Line
from ..streams.response import while_there
from .worker_protocols import WorkEnvironmentRefused, WorkerProtocols

TAG = "Self-hosted workers"
# What a held call may take beyond what it was asked to wait.
MARGIN_SECONDS = 10.0
ANY = "any"
STATUSES = ("pending", "claimed", "completed", "failed", "stopped")

# Has something called once a credential lets nobody in any more; what it gives takes that off.
Guard = Callable[[Callable[[], None]], Callable[[], None]]


class WorkerRoutes:
    """The routes, and what judges a key that comes in a body."""

    def __init__(self, authenticator: Authenticator, when_closing: Guard) -> None:
        """`when_closing` has a callback called when the process stops, until it is taken back."""
        self._authenticator = authenticator
        self._when_closing = when_closing
        self._protocols = WorkerProtocols()

    async def claim_work(self, call: Call) -> _Claiming:
        """POST /v1/x/worker/claim."""
        body: WorkClaim = call.body
        admitted = await self._caller(call, body.environment_key)
        context = admitted.context()
        environment_id = body.environment_id or admitted.principal.environment_id
        if admitted.principal.environment_id not in ("", environment_id):
            raise WorkEnvironmentRefused(
                "environment_id names another environment than the one of this worker key.", field="environment_id"
            )
        if environment_id:
            await self._require_tools(call, context, environment_id)
        request = pb.ClaimWorkItemRequest(
            worker_id=body.worker_id,
            environment_id=environment_id,
            session_id=body.session_id or "",
            wait_seconds=body.wait_ms / 1000,
        )
        guard = call.guard
        if body.environment_key is not None:
            guard = partial(self._authenticator.guard_worker, body.environment_key)
        return _Claiming(call, context, request, guard, self._when_closing)

    async def accept_work(self, call: Call) -> bytes:
        """POST /v1/x/worker/accept."""
        body: WorkMark = call.body
        context = (await self._caller(call, body.environment_key)).context()
        request = pb.AcceptWorkItemRequest(id=body.id, worker_id=body.worker_id, attempt=body.attempt or 0)
        return render_lease((await call.clients.queue.AcceptWorkItem(request, context=context)).lease_expires_at)

    async def renew_work(self, call: Call) -> bytes:
        """POST /v1/x/worker/heartbeat."""
        body: WorkMark = call.body
        context = (await self._caller(call, body.environment_key)).context()
        request = pb.HeartbeatWorkItemRequest(id=body.id, worker_id=body.worker_id, attempt=body.attempt or 0)
        return render_lease((await call.clients.queue.HeartbeatWorkItem(request, context=context)).lease_expires_at)

    async def complete_work(self, call: Call) -> bytes:
        """POST /v1/x/worker/complete."""
        body: WorkReport = call.body
        if "result" not in body.model_fields_set:
            raise InvalidRequest("result is required: what the worker got, null if nothing.", field="result")
        context = (await self._caller(call, body.environment_key)).context()
        request = pb.CompleteWorkItemRequest(
            id=body.id,
            worker_id=body.worker_id,
            attempt=body.attempt or 0,
            result_json=orjson.dumps(body.result),
            failed=body.failed,
        )
        await call.clients.queue.CompleteWorkItem(request, context=context)
        return TAKEN

    async def list_work_items(self, call: Call) -> bytes:
        """GET /v1/environments/{environment_id}/work-items."""
        environment_id = call.path["environment_id"]
        await call.ask(call.clients.environments.GetEnvironment, GetEnvironmentRequest(environment_id=environment_id))
        request = pb.ListWorkItemsRequest(
            environment_id=environment_id,
            limit=call.query["limit"],
            cursor=call.query["page"],
            status="" if call.query["status"] == ANY else call.query["status"],
        )
        found, stats = await asyncio.gather(
            call.ask(call.clients.queue.ListWorkItems, request),
            call.ask(call.clients.queue.GetQueueStats, pb.GetQueueStatsRequest(environment_id=environment_id)),
        )
        return b'{"data":[%b],"prev_page":null,"next_page":%b,"status_counts":%b}' % (
            b",".join(render_work_item(item) for item in found.items),
            text_or_null(found.next_cursor),
            orjson.dumps(render_counts(stats)),
        )

    async def _caller(self, call: Call, environment_key: str | None) -> Admitted:
        """Who calls, by a key in the body too."""
        admitted = call.admitted
        principal = admitted.principal
        if environment_key is None:
            if principal is UNPROVEN:
                raise InvalidCredential(
                    "A key is needed: a worker key as Authorization: Bearer or as environment_key, or an API key."
                )
            return admitted
        worker = await self._authenticator.authenticate_worker(environment_key, admitted.headers)
        if principal not in (ANONYMOUS, UNPROVEN, worker) and (
            principal.role == "worker" or principal.workspace_id != worker.workspace_id
        ):
            raise WorkEnvironmentRefused(
                "environment_key and the credential of this request belong to different environments.",
                field="environment_key",
            )
        return Admitted(admitted.request_id, worker, admitted.published, admitted.headers)

    async def _require_tools(self, call: Call, context: CallContext, environment_id: str) -> None:
        """Refuses an environment that the workspace does not have, or that has no items of this protocol."""
        try:
            ask = partial(call.clients.environments.GetEnvironment, context=context, retry=True)
            protocol = await self._protocols.of(context.workspace_id, environment_id, ask)
        except NotFound:
            raise WorkEnvironmentRefused(
                f"environment_id {environment_id} names no environment of this workspace.", field="environment_id"
            ) from None
        if protocol != "tool":
            raise WorkEnvironmentRefused(
                "This environment has no items to claim: they are those of self_hosted environments whose "
                f"worker_protocol is tool; here it is {protocol or 'not self_hosted'}.",
                field="environment_id",
            )

    def operations(self) -> tuple[Operation, ...]:
        """The operations of this module."""
        return (
            Operation(
                "POST",
                "/v1/x/worker/claim",
                self.claim_work,
                tag=TAG,
                workers=True,
                key_in_body=True,
                summary="Claim an item under a lease",
                description="Held open for `wait_ms` until there is one; 204 without a body if there is none. "
                "Sessions, and environments where none is named, are served in turn.",
                body=WorkClaim,
                response=WorkItem,
                other_statuses=(204,),
            ),
            Operation(
                "POST",
                "/v1/x/worker/accept",
                self.accept_work,
                tag=TAG,
                workers=True,
                key_in_body=True,
                summary="Confirm a claim right before the item is run",
                description="409 with `work_lease_lost` (lapsed, stopped or over) and 409 without a code (held by "
                "another worker) both mean: don't run it, don't report it.",
                body=WorkMark,
                response=WorkLease,
            ),
            Operation(
                "POST",
                "/v1/x/worker/heartbeat",
                self.renew_work,
                tag=TAG,
                workers=True,
                key_in_body=True,
                summary="Renew the lease on an item",
                description="409 with `work_lease_lost`: stop what runs, nobody waits for it.",
                body=WorkMark,
                response=WorkLease,
            ),
            Operation(
                "POST",
                "/v1/x/worker/complete",
                self.complete_work,
                tag=TAG,
                workers=True,
                key_in_body=True,
                nul_in_body=True,
                summary="Report what came of an item",
                description="Taken once from whoever holds it; a repeat is answered alike.",
                body=WorkReport,
                response=WorkTaken,
                max_body_bytes=16 * 1024 * 1024,
            ),
            Operation(
                "GET",
                "/v1/environments/{environment_id}/work-items",
                self.list_work_items,
                tag=TAG,
                summary="Inspect recent items of an environment's queue, newest first, and status counts",
                query=(limit(default=20, maximum=1000), page(), choice("status", (ANY, *STATUSES), default=ANY)),
                response=WorkItemPage,
            ),
        )


class _Claiming:
    """Answers with the item, or with nothing. A worker that goes meanwhile, or whose key is revoked, takes none."""

    def __init__(
        self, call: Call, context: CallContext, request: pb.ClaimWorkItemRequest, guard: Guard, when_closing: Guard
    ) -> None:
        self._when_closing = when_closing
        self._call = call
        self._context = context
        self._request = request
        self._guard = guard
        # What ended the wait before its time.
        self._cut: Exception | None = None
        self._answered = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asking = asyncio.current_task()
        assert asking is not None

        def end(cut: Exception) -> None:
            if self._cut is None:
                self._cut = cut
                asking.cancel()

        release = self._guard(lambda: end(InvalidCredential("The key of this request was revoked while it waited.")))
        forget = self._when_closing(lambda: end(_Stopping()))
        line = Line.of(scope)
        try:
            if line is None:
                await while_there(receive, self._serve(send))
                return
            line.watch(lambda: end(ClientGone()))
            await self._serve(send)
        except asyncio.CancelledError:
            if self._cut is None:
                raise
            asking.uncancel()
            if not isinstance(self._cut, _Stopping):
                raise self._cut from None
            # The worker comes again, to a gateway that stays.
            if not self._answered:
                await _answer_nothing(send)
        finally:
            release()
            forget()
            if line is not None:
                line.release()

    async def _serve(self, send: Send) -> None:
        seconds = self._request.wait_seconds + MARGIN_SECONDS
        rpc = self._call.clients.queue.ClaimWorkItem
        answer = await rpc(self._request, context=self._context, timeout_seconds=seconds)
        self._answered = True
        if answer.HasField("item"):
            await send_json(send, 200, render_work_item(answer.item))
            return
        await _answer_nothing(send)


class _Stopping(Exception):
    """The process stops."""


async def _answer_nothing(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
