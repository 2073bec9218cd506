"""Calls that share a stream: each gets its own answer, its own end, and the direct way where there is no exchange."""

import asyncio

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from kit import errors
from kit.rpc.client import Channel
from kit.rpc.context import CallContext, current_context
from kit.rpc.exchange import LARGEST_PAYLOAD
from kit.rpc.server import Server
from managed_agents.rpc.v1 import exchange_pb2, exchange_pb2_grpc
from managed_agents.sessions.v1 import turns_pb2 as pb
from managed_agents.sessions.v1.turns_pb2_grpc import (
    TurnsServiceServicer,
    TurnsServiceStub,
    add_TurnsServiceServicer_to_server,
)


class Refused(errors.FailedPrecondition):
    reason = "REFUSED"


class Turns(TurnsServiceServicer):
    """Answers with the number that it was asked with, and holds calls of a closed gate."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.gate.set()
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.transports = []

    async def AppendTurnEvents(self, request, context):
        self.transports.append("exchange" if context is None else "direct")
        self.began.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if request.epoch == 13:
            raise Refused(f"refused {current_context().workspace_id}")
        return pb.AppendTurnEventsResponse(last_seq=request.known_seq)


@pytest.fixture
async def turns(tmp_path):
    servicer = Turns()
    servicer.server = Server(f"unix:{tmp_path}/rpc.sock", service="sessions", internal_token="secret", grace_seconds=5)
    servicer.server.add(add_TurnsServiceServicer_to_server, servicer)
    await servicer.server.start()
    servicer.channel = Channel(f"unix:{tmp_path}/rpc.sock", token="secret", exchange=True)
    servicer.stub = servicer.channel.stub(TurnsServiceStub)
    yield servicer
    await servicer.channel.close()
    await servicer.server.stop()


async def test_each_of_many_calls_gets_its_own_answer(turns):
    async def ask(number):
        request = pb.AppendTurnEventsRequest(known_seq=number, epoch=13 if number % 7 == 0 else 1)
        return await turns.stub.AppendTurnEvents(request, context=CallContext(f"wrkspc_{number}"))

    answers = await asyncio.gather(*map(ask, range(500)), return_exceptions=True)
    for number, answer in enumerate(answers):
        if number % 7 == 0:
            assert isinstance(answer, errors.FailedPrecondition) and answer.reason == "REFUSED"
            assert answer.message == f"refused wrkspc_{number}"
        else:
            assert answer.last_seq == number
    assert set(turns.transports) == {"exchange"}


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_a_caller_who_leaves_cancels_its_handler_and_no_other(turns, how):
    turns.gate.clear()
    stays = asyncio.create_task(turns.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=1)))
    await turns.began.wait()
    turns.began.clear()
    leaves = asyncio.create_task(
        turns.stub.AppendTurnEvents(
            pb.AppendTurnEventsRequest(known_seq=2), timeout_seconds=0.05 if how == "too late" else None
        )
    )
    await turns.began.wait()
    if how == "cancelled":
        leaves.cancel()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else errors.DeadlineExceeded):
        await leaves
    async with asyncio.timeout(5):
        await turns.cancelled.wait()
    turns.gate.set()
    assert (await stays).last_seq == 1


async def test_a_stopping_server_answers_what_it_began(turns):
    turns.gate.clear()
    asked = asyncio.create_task(turns.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=5)))
    await turns.began.wait()
    stopping = asyncio.create_task(turns.server.stop())
    await turns.server.stopping.wait()
    turns.gate.set()
    assert (await asked).last_seq == 5
    await stopping
    with pytest.raises(errors.Unavailable):
        await turns.stub.AppendTurnEvents(pb.AppendTurnEventsRequest())


async def test_closing_the_channel_fails_calls_in_progress(turns):
    turns.gate.clear()
    asked = asyncio.create_task(turns.stub.AppendTurnEvents(pb.AppendTurnEventsRequest()))
    await turns.began.wait()
    await turns.channel.close()
    with pytest.raises(errors.Unavailable):
        await asked
    async with asyncio.timeout(5):
        await turns.cancelled.wait()


async def test_large_requests_and_services_outside_the_exchange_go_directly(turns):
    large = pb.AppendTurnEventsRequest(session_id="x" * (LARGEST_PAYLOAD + 1), known_seq=3)
    assert (await turns.stub.AppendTurnEvents(large)).last_seq == 3
    assert turns.transports == ["direct"]
    health = turns.channel.stub(HealthStub)
    answer = await health.Check(HealthCheckRequest())
    assert answer.status == HealthCheckResponse.SERVING


async def test_a_wrong_token_opens_no_exchange(turns, tmp_path):
    other = Channel(f"unix:{tmp_path}/rpc.sock", token="guess", exchange=True)
    with pytest.raises(errors.Unauthenticated):
        await other.stub(TurnsServiceStub).AppendTurnEvents(pb.AppendTurnEventsRequest())
    await other.close()
    assert turns.transports == []


async def test_a_service_of_a_former_version_is_asked_directly(tmp_path):
    servicer = Turns()
    former = grpc.aio.server()
    former.add_insecure_port(f"unix:{tmp_path}/former.sock")
    add_TurnsServiceServicer_to_server(servicer, former)
    await former.start()
    channel = Channel(f"unix:{tmp_path}/former.sock", exchange=True)
    stub = channel.stub(TurnsServiceStub)
    answers = await asyncio.gather(
        *(stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=number)) for number in range(20))
    )
    assert [answer.last_seq for answer in answers] == list(range(20))
    assert set(servicer.transports) == {"direct"}
    await channel.close()
    await former.stop(None)


async def test_an_answer_to_nobody_and_an_unknown_rpc_do_no_harm(turns, tmp_path):
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/rpc.sock") as raw:
        stub = exchange_pb2_grpc.ExchangeServiceStub(raw)
        rpc = stub.Exchange(metadata=(("authorization", "Bearer secret"),))
        await rpc.write(
            exchange_pb2.ExchangeRequest(
                calls=[exchange_pb2.Call(id=1, method="no.such.Service/Rpc")], cancelled_ids=[1, 99]
            )
        )
        (answer,) = (await rpc.read()).answers
        assert (answer.id, answer.code) == (1, grpc.StatusCode.UNIMPLEMENTED.value[0])
        await rpc.done_writing()
        assert await rpc.read() is grpc.aio.EOF
