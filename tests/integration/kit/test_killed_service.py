"""A service that dies in the middle of calls is told as Unavailable, whatever gRPC makes of the broken connection."""

import asyncio
import sys
from pathlib import Path

import pytest

from kit.errors import DomainError, Unavailable
from kit.rpc.client import Channel
from kit.waiting import within
from managed_agents.sessions.v1 import turns_pb2 as pb
from managed_agents.sessions.v1.turns_pb2_grpc import TurnsServiceStub

CHILD = Path(__file__).with_name("rpc_child.py")
DEATHS, CALLERS = 8, 8


async def call_until_it_fails(stub) -> DomainError:
    number = 0
    while True:
        number += 1
        try:
            await stub.AppendTurnEvents(pb.AppendTurnEventsRequest(known_seq=number))
        except DomainError as error:
            return error


async def write_until_it_fails(stub) -> DomainError:
    """A write is what meets a broken connection first, and gRPC ends the whole call with INTERNAL then."""
    answers = stub.ClaimTurns()
    try:
        await answers.write(pb.ClaimTurnsRequest())
        async for _answer in answers:
            await answers.write(pb.ClaimTurnsRequest())
    except DomainError as error:
        return error
    raise AssertionError("the stream ended without a word")


@pytest.mark.parametrize("exchange", [False, True], ids=["direct", "exchange"])
async def test_a_service_killed_in_mid_call_is_unavailable(tmp_path: Path, exchange: bool) -> None:
    address, told = f"unix:{tmp_path}/rpc.sock", []
    for number in range(DEATHS):
        child = await asyncio.create_subprocess_exec(
            sys.executable, str(CHILD), address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        channel = Channel(address, exchange=exchange)
        try:
            assert await child.stdout.readline() == b"serves\n"
            stub = channel.stub(TurnsServiceStub)
            failing = asyncio.gather(
                *(call_until_it_fails(stub) for _ in range(CALLERS)), *(write_until_it_fails(stub) for _ in range(3))
            )
            # Another phase of the calls' traffic at each death.
            asyncio.get_running_loop().call_later(0.03 + number * 0.003, child.kill)
            told += await within(failing, 20)
        finally:
            await channel.close()
            await child.wait()
    assert {type(error) for error in told} == {Unavailable}, told
