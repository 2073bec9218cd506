"""The session protocol of self-hosted workers, as the published client's own worker speaks it."""

from __future__ import annotations

from functools import partial

import orjson

from managed_agents.sessions.v1.common_pb2 import PageInfo
from managed_agents.worker.v1 import session_work_pb2 as pb

from ..operation import Call, Operation, integer, limit, page, text
from ..render.session_work import render_lease, render_stats, render_work
from ..render.splice import collection
from ..schemas.session_work import (
    SessionWork,
    SessionWorkLease,
    SessionWorkPage,
    SessionWorkStats,
    SessionWorkStop,
    SessionWorkUpdate,
)
from .worker_protocols import WorkEnvironmentRefused, WorkerProtocols

TAG = "Self-hosted workers"
WORK = "/v1/environments/{environment_id}/work"
ITEM = f"{WORK}/{{work_id}}"
WORKER_HEADER = "anthropic-worker-id"
NOTHING = b"null"
RECLAIM_MS = 5000
DAY_MS = 86_400_000
# What a held poll may take beyond what it was asked to wait.
MARGIN_SECONDS = 10.0


class SessionWorkRoutes:
    """The routes, and what is known of environments."""

    def __init__(self) -> None:
        self._protocols = WorkerProtocols()

    async def poll(self, call: Call) -> bytes:
        """GET /v1/environments/{environment_id}/work/poll."""
        await self._require_sessions(call)
        block_ms, reclaim_ms = call.query["block_ms"], call.query["reclaim_older_than_ms"]
        seconds = (block_ms or 0) / 1000
        request = pb.PollWorkRequest(
            environment_id=call.path["environment_id"],
            worker_id=call.headers.get(WORKER_HEADER, ""),
            block_seconds=seconds,
            reclaim_seconds=reclaim_ms / 1000,
        )
        rpc = call.clients.session_work.PollWork
        answer = await rpc(request, context=call.context, timeout_seconds=seconds + MARGIN_SECONDS)
        return render_work(answer.work, answer.sessions_token) if answer.HasField("work") else NOTHING

    async def acknowledge(self, call: Call) -> bytes:
        """POST /v1/environments/{environment_id}/work/{work_id}/ack."""
        answer = await call.ask(call.clients.session_work.AckWork, pb.AckWorkRequest(**_named(call)))
        return render_work(answer.work)

    async def heartbeat(self, call: Call) -> bytes:
        """POST /v1/environments/{environment_id}/work/{work_id}/heartbeat."""
        request = pb.HeartbeatWorkRequest(
            **_named(call),
            desired_ttl_seconds=call.query["desired_ttl_seconds"],
            expected_last_heartbeat=call.query["expected_last_heartbeat"] or None,
        )
        answer = await call.ask(call.clients.session_work.HeartbeatWork, request)
        return render_lease(answer.lease)

    async def stop(self, call: Call) -> bytes:
        """POST /v1/environments/{environment_id}/work/{work_id}/stop."""
        request = pb.StopWorkRequest(**_named(call), force=bool(call.body.force))
        answer = await call.ask(call.clients.session_work.StopWork, request)
        return render_work(answer.work)

    async def retrieve(self, call: Call) -> bytes:
        """GET /v1/environments/{environment_id}/work/{work_id}."""
        answer = await call.ask(call.clients.session_work.GetWork, pb.GetWorkRequest(**_named(call)))
        return render_work(answer.work)

    async def update(self, call: Call) -> bytes:
        """POST and PATCH /v1/environments/{environment_id}/work/{work_id}."""
        request = pb.UpdateWorkRequest(**_named(call), metadata_json=orjson.dumps(call.body.metadata))
        answer = await call.ask(call.clients.session_work.UpdateWork, request)
        return render_work(answer.work)

    async def list_work(self, call: Call) -> bytes:
        """GET /v1/environments/{environment_id}/work."""
        request = pb.ListWorkRequest(
            environment_id=call.path["environment_id"], limit=call.query["limit"], cursor=call.query["page"]
        )
        # A cursor that is none is told wherever it is sent; of another environment there is nothing to read.
        answer = await call.ask(call.clients.session_work.ListWork, request)
        await self._require_sessions(call)
        return collection([render_work(work) for work in answer.work], PageInfo(next_cursor=answer.next_cursor))

    async def stats(self, call: Call) -> bytes:
        """GET /v1/environments/{environment_id}/work/stats."""
        await self._require_sessions(call)
        request = pb.GetWorkStatsRequest(environment_id=call.path["environment_id"])
        return render_stats(await call.ask(call.clients.session_work.GetWorkStats, request))

    async def _require_sessions(self, call: Call) -> None:
        """Refuses an environment that is not there, or whose workers don't serve whole sessions."""
        environment_id = call.path["environment_id"]
        ask = partial(call.ask, call.clients.environments.GetEnvironment)
        protocol = await self._protocols.of(call.context.workspace_id, environment_id, ask)
        if protocol != "session":
            raise WorkEnvironmentRefused(
                "This environment has no sessions to hand out: those are of self_hosted environments whose"
                f" worker_protocol is session; here it is {protocol or 'not self_hosted'}.",
                field="environment_id",
            )

    def operations(self) -> tuple[Operation, ...]:
        """The operations of this module."""
        return (*self._of_workers(), *self._of_operators())

    def _of_workers(self) -> tuple[Operation, ...]:
        return (
            Operation(
                "GET",
                f"{WORK}/poll",
                self.poll,
                tag=TAG,
                summary="Wait for a session to serve",
                description="JSON `null` if there is none. The answer alone has the item's `secret`.",
                query=(
                    integer("block_ms", minimum=1, maximum=999, description="How long to wait; absent: not at all."),
                    integer(
                        "reclaim_older_than_ms",
                        minimum=0,
                        maximum=DAY_MS,
                        default=RECLAIM_MS,
                        description="Also items that were handed out longer ago and never acknowledged.",
                    ),
                ),
                response=SessionWork,
                workers=True,
                workers_only=True,
            ),
            Operation(
                "POST",
                f"{ITEM}/ack",
                self.acknowledge,
                tag=TAG,
                summary="Take an item off the queue",
                response=SessionWork,
                workers=True,
                workers_only=True,
                holders="item",
            ),
            Operation(
                "POST",
                f"{ITEM}/heartbeat",
                self.heartbeat,
                tag=TAG,
                summary="Renew the lease on an item",
                description="The first one says `NO_HEARTBEAT`, each later one repeats the last answer's"
                " `last_heartbeat`; 412 where that is not what is stored.",
                query=(
                    integer("desired_ttl_seconds", minimum=1, maximum=86_400, description="How long the lease runs."),
                    text("expected_last_heartbeat", max_length=64, description="What is stored; absent: anything."),
                ),
                response=SessionWorkLease,
                workers=True,
                workers_only=True,
                holders="item",
            ),
            Operation(
                "POST",
                f"{ITEM}/stop",
                self.stop,
                tag=TAG,
                summary="Ask the holder of an item to stop, or end it at once",
                body=SessionWorkStop,
                optional_body=True,
                response=SessionWork,
                workers=True,
                holders="item",
            ),
        )

    def _of_operators(self) -> tuple[Operation, ...]:
        return (
            Operation(
                "GET",
                f"{WORK}/stats",
                self.stats,
                tag=TAG,
                summary="Tell how full the queue of an environment is",
                response=SessionWorkStats,
                workers=True,
            ),
            Operation(
                "GET",
                WORK,
                self.list_work,
                tag=TAG,
                summary="List the items of an environment, newest first",
                query=(limit(default=20, maximum=1000), page()),
                response=SessionWorkPage,
                workers=True,
            ),
            Operation("GET", ITEM, self.retrieve, tag=TAG, summary="Retrieve an item", response=SessionWork),
            *(
                Operation(
                    method,
                    ITEM,
                    self.update,
                    tag=TAG,
                    summary="Merge metadata into an item",
                    body=SessionWorkUpdate,
                    response=SessionWork,
                )
                for method in ("POST", "PATCH")
            ),
        )


def _named(call: Call) -> dict[str, str]:
    return {"environment_id": call.path["environment_id"], "work_id": call.path["work_id"]}
