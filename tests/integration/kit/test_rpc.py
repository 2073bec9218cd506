"""A refusal crosses a real gRPC connection whole, and context, deadline, token and retry do what they promise.

Each test runs twice: unary calls by themselves, and within an exchange.
"""

import asyncio
import json

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kit import errors, telemetry
from kit.rpc.client import Channel
from kit.rpc.context import CallContext, current_context, use_context
from kit.rpc.server import Server
from kit.rpc.status import INTERNAL_TEXT
from kit.testing import await_until
from kit.waiting import within
from managed_agents.sessions.v1 import turns_pb2 as pb
from managed_agents.sessions.v1.turns_pb2_grpc import (
    TurnsServiceServicer,
    TurnsServiceStub,
    add_TurnsServiceServicer_to_server,
)

CALLER = CallContext(workspace_id="wrkspc_a", request_id="req_1", principal_id="key_1", published_contract=True)
METADATA = {"agent_id": "agent_1", "details": '{"a":[1]}'}


def refusals() -> list[errors.DomainError]:
    """One of each canonical class, with everything that an error can carry."""
    found = []
    for kind in errors.CANONICAL.values():
        named = type(f"Named{kind.__name__}", (kind,), {"reason": "AGENT_NOT_FOUND"})
        found.append(
            named(
                "Nein: „ü“ – 文字",
                field="tools[2].name",
                retry_after_seconds=1.25,
                agent_id="agent_1",
                details='{"a":[1]}',
            )
        )
    return found


class Turns(TurnsServiceServicer):
    """Does what the test put into `behaviour`."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        self.behaviour = None
        self.calls = 0
        self.ended = asyncio.Event()

    async def _behave(self):
        self.calls += 1
        self.contexts.append(current_context())
        if isinstance(self.behaviour, Exception):
            raise self.behaviour
        if self.behaviour is not None:
            await self.behaviour()

    async def AppendTurnEvents(self, request, context):
        await self._behave()
        return pb.AppendTurnEventsResponse(last_seq=request.known_seq + 1)

    async def ReadTurnContext(self, request, context):
        yield pb.ReadTurnContextResponse()
        await self._behave()
        yield pb.ReadTurnContextResponse()

    async def ClaimTurns(self, requests, context):
        try:
            async for _request in requests:
                await self._behave()
                yield pb.ClaimTurnsResponse()
        finally:
            self.ended.set()


@pytest.fixture(params=["direct", "exchange"])
async def turns(tmp_path, request):
    servicer = Turns()
    servicer.address = f"unix:{tmp_path}/rpc.sock"
    servicer.server = Server(servicer.address, service="sessions", internal_token="token-of-the-test", grace_seconds=5)
    servicer.server.add(add_TurnsServiceServicer_to_server, servicer)
    await servicer.server.start()
    servicer.channel = Channel(servicer.address, token="token-of-the-test", exchange=request.param == "exchange")
    servicer.stub = servicer.channel.stub(TurnsServiceStub)
    yield servicer
    await servicer.channel.close()
    await servicer.server.stop()


async def unary(turns, **options):
    return await turns.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=41), **options)


async def stream(turns, **options):
    return [answer async for answer in turns.stub.ReadTurnContext(pb.ReadTurnContextRequest(), **options)]


async def bidi(turns, **options):
    async def requests():
        yield pb.ClaimTurnsRequest()

    return [answer async for answer in turns.stub.ClaimTurns(requests(), **options)]


@pytest.mark.parametrize("call", [unary, stream, bidi])
async def test_every_canonical_error_comes_back_whole(turns, call):
    for raised in refusals():
        turns.behaviour = raised
        with pytest.raises(errors.CANONICAL[raised.code]) as caught:
            await call(turns)
        got = caught.value
        assert type(got) is errors.CANONICAL[raised.code]
        assert (got.reason, got.message, got.field) == ("AGENT_NOT_FOUND", raised.message, "tools[2].name")
        assert got.metadata == METADATA
        assert got.retry_after_seconds == 1.25


async def test_a_large_refusal_still_arrives(turns):
    turns.behaviour = errors.InvalidArgument("x" * 100_000, small="kept", details="y" * 100_000)
    with pytest.raises(errors.InvalidArgument) as caught:
        await unary(turns)
    assert len(caught.value.message) == 4_000
    assert caught.value.metadata == {"small": "kept"}


@pytest.mark.parametrize("call", [unary, stream, bidi])
async def test_an_unknown_failure_is_masked_and_logged_whole(turns, call, capsys):
    telemetry.setup("test")
    turns.behaviour = ValueError("the whole plan")
    with pytest.raises(errors.Internal) as caught:
        await call(turns, context=CALLER)
    assert "plan" not in str(caught.value.__dict__)
    assert (caught.value.reason, caught.value.message) == ("INTERNAL", INTERNAL_TEXT)
    (line,) = [
        entry for entry in map(json.loads, capsys.readouterr().err.splitlines()) if entry["event"] == "call failed"
    ]
    assert line["request_id"] == "req_1"
    assert "the whole plan" in line["exception"]


@pytest.mark.parametrize("call", [unary, stream, bidi])
async def test_the_context_goes_along(turns, call):
    await call(turns, context=CALLER)
    with use_context(CALLER):
        await call(turns)
    for context in turns.contexts:
        assert (context.workspace_id, context.request_id, context.principal_id, context.published_contract) == (
            "wrkspc_a",
            "req_1",
            "key_1",
            True,
        )


async def test_a_call_without_context_gets_a_request_id_of_its_own(turns):
    await unary(turns)
    (context,) = turns.contexts
    assert context.workspace_id == ""
    assert context.request_id.startswith("req_")


@pytest.mark.parametrize("token", [None, "", "token-of-the-tesT", "token-of-the-test2", "ü"])
@pytest.mark.parametrize("method", ["AppendTurnEvents", "ReadTurnContext"])
async def test_a_wrong_internal_token_is_refused_before_the_handler(turns, token, method):
    metadata = [("authorization", f"Bearer {token}".encode("ascii", "replace").decode())] if token is not None else []
    async with grpc.aio.insecure_channel(turns.address) as channel:
        call = getattr(TurnsServiceStub(channel), method)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if method == "AppendTurnEvents":
                await call(pb.AppendTurnEventsRequest(), metadata=metadata)
            else:
                async for _ in call(pb.ReadTurnContextRequest(), metadata=metadata):
                    pass
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert turns.calls == 0


async def test_a_malformed_context_is_refused(turns):
    async with grpc.aio.insecure_channel(turns.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await TurnsServiceStub(channel).AppendTurnEvents(
                pb.AppendTurnEventsRequest(),
                metadata=[("authorization", "Bearer token-of-the-test"), ("call-context-bin", b"\xff\xff")],
            )
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_call_ends_at_its_limit(turns):
    turns.behaviour = asyncio.Event().wait
    with pytest.raises(errors.DeadlineExceeded) as caught:
        await unary(turns, timeout_seconds=0.05)
    assert caught.value.reason == "DEADLINE_EXCEEDED"


async def test_a_call_inside_a_call_ends_early_enough_to_say_so(turns):
    inner_errors = []

    async def inner():
        if turns.calls == 1:
            try:
                await unary(turns)
            except errors.DeadlineExceeded as error:
                inner_errors.append(error)
                raise errors.Unavailable("told in time") from None
        await asyncio.Event().wait()

    turns.behaviour = inner
    with pytest.raises(errors.Unavailable, match="told in time"):
        await unary(turns, timeout_seconds=0.6)
    assert len(inner_errors) == 1


async def test_a_call_is_not_begun_when_no_time_is_left(turns):
    import time

    context = CallContext(request_id="req_1", deadline=time.monotonic() + 0.05)
    with pytest.raises(errors.DeadlineExceeded):
        await unary(turns, context=context)
    assert turns.calls == 0


async def test_only_a_marked_call_is_tried_again_and_only_once(turns):
    turns.behaviour = errors.Unavailable("busy", retry_after_seconds=3.0)
    with pytest.raises(errors.Unavailable):
        await unary(turns)
    assert turns.calls == 1
    with pytest.raises(errors.Unavailable) as caught:
        await unary(turns, retry=True)
    assert turns.calls == 3
    assert caught.value.retry_after_seconds == 3.0
    turns.behaviour = errors.Internal("broken")
    with pytest.raises(errors.Internal):
        await unary(turns, retry=True)
    assert turns.calls == 4


async def test_a_marked_call_outlives_a_restart_of_the_service(turns):
    assert (await unary(turns)).last_seq == 42
    await turns.server.stop()
    with pytest.raises(errors.Unavailable):
        await unary(turns)
    call = asyncio.create_task(unary(turns, retry=True))
    again = Server(turns.address, service="sessions", internal_token="token-of-the-test")
    again.add(add_TurnsServiceServicer_to_server, turns)
    await again.start()
    assert (await call).last_seq == 42
    await again.stop()


async def test_a_stop_lets_a_call_finish_and_tells_long_streams(turns):
    started = asyncio.Event()

    async def until_stopping():
        started.set()
        await turns.server.stopping.wait()

    turns.behaviour = until_stopping
    call = asyncio.create_task(unary(turns))
    await started.wait()
    await within(turns.server.stop(), 4)
    assert (await call).last_seq == 42
    with pytest.raises(errors.Unavailable):
        await unary(turns)


async def test_an_abandoned_stream_ends_at_the_server(turns):
    forever = asyncio.Event()

    async def requests():
        yield pb.ClaimTurnsRequest()
        await forever.wait()

    answers = turns.stub.ClaimTurns(requests())
    async for _ in answers:
        break
    answers.cancel()
    await within(turns.ended.wait(), 30)


async def test_a_stream_that_is_cancelled_on_purpose_just_ends(turns):
    turns.behaviour = asyncio.Event().wait
    answers = turns.stub.ReadTurnContext(pb.ReadTurnContextRequest())
    got = []

    async def read() -> str:
        async for answer in answers:
            got.append(answer)
        return "ended"

    reading = asyncio.create_task(read())
    await await_until(lambda: got)
    answers.cancel()
    assert await reading == "ended"
    assert len(got) == 1


@pytest.mark.parametrize("call", [unary, stream, bidi])
async def test_a_closed_channel_is_told_from_a_cancelled_task(turns, call):
    turns.behaviour = asyncio.Event().wait
    cancelled = asyncio.create_task(call(turns))
    await await_until(lambda: turns.calls == 1)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    calling = asyncio.create_task(call(turns))
    await await_until(lambda: turns.calls == 2)
    await turns.channel.close()
    with pytest.raises(errors.Unavailable):
        await calling
    with pytest.raises(errors.Unavailable):
        await call(turns)


async def test_health_follows_the_server_and_lets_it_stop(turns):
    async with grpc.aio.insecure_channel(turns.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        seen = []

        async def watch():
            async for answer in health.Watch(health_pb2.HealthCheckRequest()):
                seen.append(answer.status)

        watching = asyncio.create_task(watch())
        answer = await health.Check(health_pb2.HealthCheckRequest(service="managed_agents.sessions.v1.TurnsService"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        await await_until(lambda: seen)
        await within(turns.server.stop(), 4)
        await watching
    assert seen == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


async def test_a_socket_left_by_a_killed_process_is_replaced_and_a_live_one_is_not(turns, tmp_path):
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/dead.sock")
    server = Server(f"unix://{tmp_path}/dead.sock", service="x")
    await server.start()
    assert (tmp_path / "dead.sock").stat().st_mode & 0o077 == 0
    await server.stop()
    with pytest.raises(RuntimeError):
        await Server(turns.address, service="x").start()
    assert (await unary(turns)).last_seq == 42


async def test_tcp_works_too():
    servicer = Turns()
    server = Server("127.0.0.1:0", service="sessions")
    server.add(add_TurnsServiceServicer_to_server, servicer)
    await server.start()
    channel = Channel(f"127.0.0.1:{server.port}")
    assert await channel.ready(5)
    assert (await channel.stub(TurnsServiceStub).AppendTurnEvents(pb.AppendTurnEventsRequest())).last_seq == 1
    await channel.close()
    await server.stop()
