"""Calls that share a stream, which is a line on one machine and an rpc elsewhere: each gets its own answer and its own
end, and goes the direct way where there is no exchange."""

import asyncio
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
import uvloop
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from kit import errors
from kit.rpc.client import Channel
from kit.rpc.context import CallContext, current_context
from kit.rpc.exchange import LARGEST_PAYLOAD, _Wire
from kit.rpc.server import Server
from kit.testing import await_until
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
        self.done = set()

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
        self.done.add(request.known_seq)
        return pb.AppendTurnEventsResponse(last_seq=request.known_seq)


async def serving(address, **options):
    servicer = Turns()
    servicer.server = Server(address, service="sessions", internal_token="secret", grace_seconds=5, **options)
    servicer.server.add(add_TurnsServiceServicer_to_server, servicer)
    await servicer.server.start()
    servicer.address = address if address.startswith("unix:") else f"127.0.0.1:{servicer.server.port}"
    servicer.channel = Channel(servicer.address, token="secret", exchange=True)
    servicer.stub = servicer.channel.stub(TurnsServiceStub)
    return servicer


@pytest.fixture(params=["line", "rpc"])
async def turns(tmp_path, request):
    servicer = await serving(f"unix:{tmp_path}/rpc.sock" if request.param == "line" else "127.0.0.1:0")
    yield servicer
    await servicer.channel.close()
    await servicer.server.stop()


@pytest.fixture
async def local(tmp_path):
    """Where there is a line."""
    servicer = await serving(f"unix:{tmp_path}/rpc.sock")
    servicer.line = tmp_path / "rpc.line"
    yield servicer
    await servicer.channel.close()
    await servicer.server.stop()


def framed(message):
    encoded = message.SerializeToString()
    return len(encoded).to_bytes(4, "big") + encoded


async def read_message(reader, kind):
    return kind.FromString(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))


async def line_to(servicer, *, greeted=True):
    reader, writer = await asyncio.open_unix_connection(str(servicer.line))
    if greeted:
        writer.write(framed(exchange_pb2.Hello(authorization="Bearer secret")))
    return reader, writer


def asking(call_id, **fields):
    return exchange_pb2.Call(
        id=call_id,
        method="managed_agents.sessions.v1.TurnsService/AppendTurnEvents",
        payload=pb.AppendTurnEventsRequest(**fields).SerializeToString(),
    )


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


@pytest.mark.parametrize("token", ["guess", None])
async def test_a_wrong_token_opens_no_exchange(turns, token):
    other = Channel(turns.address, token=token, exchange=True)
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


async def test_an_answer_to_nobody_and_an_unknown_rpc_do_no_harm(turns):
    async with grpc.aio.insecure_channel(turns.address) as raw:
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


async def test_an_answer_too_large_to_be_sent_fails_its_own_call_alone(turns, monkeypatch):
    monkeypatch.setattr("kit.rpc.exchange_server.MESSAGE_BYTES", 4)
    turns.gate.clear()
    small = asyncio.create_task(turns.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=1)))
    large = asyncio.create_task(turns.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=1 << 60)))
    await turns.began.wait()
    turns.gate.set()
    with pytest.raises(errors.Internal):
        await large
    assert (await small).last_seq == 1


async def test_on_one_machine_calls_go_over_a_line_that_is_for_this_user_alone(local):
    assert stat.S_IMODE(local.line.stat().st_mode) == 0o600
    await local.stub.AppendTurnEvents(pb.AppendTurnEventsRequest())
    # Nothing but the line is left that could carry a call.
    (local.line.parent / "rpc.sock").unlink()
    assert (await local.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=4))).last_seq == 4
    await local.server.stop()
    assert not local.line.exists()


def test_a_line_is_the_same_under_the_loop_that_services_run(tmp_path):
    async def ask():
        servicer = await serving(f"unix:{tmp_path}/rpc.sock")
        try:
            (tmp_path / "rpc.sock").unlink()
            answers = await asyncio.gather(
                *(servicer.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=seq)) for seq in range(100))
            )
            assert [answer.last_seq for answer in answers] == list(range(100))
        finally:
            await servicer.channel.close()
            await servicer.server.stop()

    uvloop.run(ask())


@pytest.mark.parametrize("there", ["nothing", "what a killed process left", "a folder"])
async def test_where_no_line_can_be_served_calls_go_over_an_rpc(tmp_path, there):
    line = tmp_path / "rpc.line"
    if there == "a folder":
        line.mkdir()
        (line / "in the way").touch()
    servicer = await serving(f"unix:{tmp_path}/rpc.sock")
    if there == "nothing":
        line.unlink()
    if there == "what a killed process left":
        line.unlink()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(line))
    assert (await servicer.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=3))).last_seq == 3
    assert servicer.transports == ["exchange"]
    await servicer.channel.close()
    await servicer.server.stop()


async def test_a_line_takes_the_place_of_what_a_killed_process_left(tmp_path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "rpc.line"))
    servicer = await serving(f"unix:{tmp_path}/rpc.sock")
    (tmp_path / "rpc.sock").unlink()
    assert (await servicer.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=3))).last_seq == 3
    await servicer.channel.close()
    await servicer.server.stop()


async def test_the_next_call_after_a_restart_finds_the_new_line(tmp_path):
    address = f"unix:{tmp_path}/rpc.sock"
    first = await serving(address)
    first.gate.clear()
    lost = asyncio.create_task(first.stub.AppendTurnEvents(pb.AppendTurnEventsRequest()))
    await first.began.wait()
    stopping = asyncio.create_task(first.server.stop())
    await first.server.stopping.wait()
    first.gate.set()
    await asyncio.gather(stopping, lost)
    with pytest.raises(errors.Unavailable):
        await first.stub.AppendTurnEvents(pb.AppendTurnEventsRequest())
    second = await serving(address)
    answer = await first.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=8), retry=True)
    assert answer.last_seq == 8
    (tmp_path / "rpc.sock").unlink()
    assert (await first.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=9))).last_seq == 9
    for servicer in (first, second):
        await servicer.channel.close()
        await servicer.server.stop()


async def test_a_stop_waits_no_longer_than_its_grace_for_what_runs_on_a_line(tmp_path):
    servicer = Turns()
    server = Server(f"unix:{tmp_path}/rpc.sock", service="sessions", grace_seconds=0.1)
    server.add(add_TurnsServiceServicer_to_server, servicer)
    await server.start()
    channel = Channel(f"unix:{tmp_path}/rpc.sock", exchange=True)
    servicer.gate.clear()
    asked = asyncio.create_task(channel.stub(TurnsServiceStub).AppendTurnEvents(pb.AppendTurnEventsRequest()))
    await servicer.began.wait()
    async with asyncio.timeout(10):
        await server.stop()
        with pytest.raises(errors.Unavailable):
            await asked
        await servicer.cancelled.wait()
    await channel.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x03\xff\xff\xff",
        (1 << 31).to_bytes(4, "big") + b"x",
        framed(exchange_pb2.Hello(authorization="Bearer guess")) + framed(exchange_pb2.ExchangeRequest()),
        framed(exchange_pb2.ExchangeRequest(calls=[asking(1)])),
    ],
    ids=["no message", "a length without end", "a wrong token", "a call before the greeting"],
)
async def test_what_does_not_belong_on_a_line_cuts_it_and_reaches_no_handler(local, sent):
    reader, writer = await line_to(local, greeted=False)
    writer.write(sent)
    async with asyncio.timeout(10):
        rest = await reader.read()
    if rest:
        (answer,) = exchange_pb2.ExchangeResponse.FromString(rest[4:]).answers
        assert (answer.id, answer.code) == (0, grpc.StatusCode.UNAUTHENTICATED.value[0])
    assert local.transports == []
    writer.close()
    assert (await local.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=2))).last_seq == 2


async def test_a_message_that_comes_byte_by_byte_is_one_message(local):
    reader, writer = await line_to(local)
    for byte in framed(exchange_pb2.ExchangeRequest(calls=[asking(1, known_seq=6), asking(2, known_seq=7)])):
        writer.write(bytes((byte,)))
        await asyncio.sleep(0)
    answers = {}
    while len(answers) < 2:
        for answer in (await read_message(reader, exchange_pb2.ExchangeResponse)).answers:
            answers[answer.id] = pb.AppendTurnEventsResponse.FromString(answer.payload).last_seq
    assert answers == {1: 6, 2: 7}
    writer.close()


async def test_a_caller_who_does_not_read_is_not_read_from(local, monkeypatch):
    """Its answers wait in its own socket and not in this process's memory; others are served meanwhile."""
    monkeypatch.setattr("kit.rpc.line._UNSENT_BYTES", 4096)
    reader, writer = await line_to(local)
    writer.transport.pause_reading()
    writer.transport.set_write_buffer_limits(high=4096)
    sent = 0
    with pytest.raises(TimeoutError):
        while True:
            calls = [asking(number, known_seq=number) for number in range(sent + 1, sent + 501)]
            writer.write(framed(exchange_pb2.ExchangeRequest(calls=calls)))
            sent += 500
            async with asyncio.timeout(0.5):
                await writer.drain()
    assert (await local.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=2))).last_seq == 2
    writer.transport.resume_reading()
    answered = 0
    async with asyncio.timeout(30):
        while answered < sent:
            answered += len((await read_message(reader, exchange_pb2.ExchangeResponse)).answers)
    writer.close()


async def test_lines_leave_no_descriptor_behind(local):
    async def ask():
        channel = Channel(local.address, token="secret", exchange=True)
        await channel.stub(TurnsServiceStub).AppendTurnEvents(pb.AppendTurnEventsRequest())
        await channel.close()

    await ask()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        await ask()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


async def test_a_call_that_is_taken_back_before_it_began_holds_up_no_stop(local):
    reader, writer = await line_to(local)
    writer.write(framed(exchange_pb2.ExchangeRequest(calls=[asking(1), asking(2, known_seq=2)], cancelled_ids=[1])))
    async with asyncio.timeout(3):
        (answer,) = (await read_message(reader, exchange_pb2.ExchangeResponse)).answers
        assert answer.id == 2
        await local.server.stop()
    writer.close()


async def test_who_comes_while_a_stream_opens_needs_nobody_who_came_before(turns, monkeypatch):
    opens = asyncio.Event()
    opened = _Wire.opened

    async def slowly(*arguments):
        await opens.wait()
        return await opened(*arguments)

    monkeypatch.setattr(_Wire, "opened", slowly)
    # Where there is no line it is the rpc that follows.
    monkeypatch.setattr(turns.channel.exchange, "_line", turns.channel.exchange._line or Path("/nowhere"))
    first = asyncio.create_task(turns.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=1)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.create_task(turns.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=2)))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    opens.set()
    async with asyncio.timeout(5):
        assert (await second).last_seq == 2


async def test_a_service_that_stands_still_hears_no_more_of_calls_that_nobody_waits_for(tmp_path):
    """Nor do they wait in the caller's memory."""
    goes_on = asyncio.Event()
    heard = []

    async def stands_still(reader, writer):
        await goes_on.wait()
        await read_message(reader, exchange_pb2.Hello)
        while True:
            request = await read_message(reader, exchange_pb2.ExchangeRequest)
            heard.extend(request.calls)
            if request.calls and pb.AppendTurnEventsRequest.FromString(request.calls[-1].payload).known_seq:
                answer = exchange_pb2.Answer(
                    id=request.calls[-1].id, payload=pb.AppendTurnEventsResponse(last_seq=7).SerializeToString()
                )
                writer.write(framed(exchange_pb2.ExchangeResponse(answers=[answer])))
                writer.close()
                return

    server = await asyncio.start_unix_server(stands_still, tmp_path / "rpc.line")
    channel = Channel(f"unix:{tmp_path}/rpc.sock", exchange=True)
    stub = channel.stub(TurnsServiceStub)
    large = pb.AppendTurnEventsRequest(session_id="x" * 200_000)
    for _ in range(10):
        late = await asyncio.gather(
            *(stub.AppendTurnEvents(large, timeout_seconds=0.05) for _ in range(20)), return_exceptions=True
        )
        assert all(isinstance(each, errors.DeadlineExceeded) for each in late)
    asked = asyncio.create_task(stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=7)))
    await asyncio.sleep(0)
    goes_on.set()
    assert (await asked).last_seq == 7
    assert len(heard) <= 61
    await channel.close()
    server.close()


async def test_a_server_that_is_stopped_again_leaves_its_follower_the_line(tmp_path):
    first = await serving(f"unix:{tmp_path}/rpc.sock")
    await first.channel.close()
    await first.server.stop()
    second = await serving(f"unix:{tmp_path}/rpc.sock")
    await first.server.stop()
    (tmp_path / "rpc.sock").unlink()
    assert (await second.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=3))).last_seq == 3
    await second.channel.close()
    await second.server.stop()


async def test_a_stop_loses_no_answer_however_many_calls_come_meanwhile(turns):
    heard = set()

    async def ask(number):
        with suppress(errors.Unavailable):
            heard.add((await turns.stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=number))).last_seq)

    await ask(1)
    asked = []
    stopping = asyncio.create_task(turns.server.stop())
    while not stopping.done():
        asked += [asyncio.create_task(ask(len(asked) + 2)) for _ in range(5)]
        await asyncio.sleep(0)
    await asyncio.gather(*asked)
    assert turns.done == heard


async def test_a_caller_who_is_refused_is_heard_out(local):
    """Else its own next words, which meet a closed line, would be all that it hears of."""
    reader, writer = await line_to(local, greeted=False)
    writer.write(framed(exchange_pb2.Hello(authorization="Bearer guess")))
    async with asyncio.timeout(10):
        (answer,) = (await read_message(reader, exchange_pb2.ExchangeResponse)).answers
        assert answer.code == grpc.StatusCode.UNAUTHENTICATED.value[0]
        for _ in range(10):
            await asyncio.sleep(0)
        os.write(writer.get_extra_info("socket").fileno(), framed(exchange_pb2.ExchangeRequest(calls=[asking(1)])))
        assert await reader.read() == b""
        # It is cut in the end, whatever the caller does.
        await await_until(lambda: not local.server._lines._open)
    assert local.transports == []
    writer.close()


async def test_who_calls_right_after_a_refusal_is_told_of_it(local, monkeypatch):
    opened = _Wire.opened

    async def until_refused(stream, *arguments):
        is_there = await opened(stream, *arguments)
        await await_until(lambda: stream.ended)
        return is_there

    monkeypatch.setattr(_Wire, "opened", until_refused)
    other = Channel(local.address, token="guess", exchange=True)
    with pytest.raises(errors.Unauthenticated):
        await other.stub(TurnsServiceStub).AppendTurnEvents(pb.AppendTurnEventsRequest())
    await other.close()
