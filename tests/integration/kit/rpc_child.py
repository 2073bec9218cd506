"""A service for tests that kill it in the middle of calls."""

import asyncio
import sys

from kit.rpc.server import Server
from managed_agents.sessions.v1 import turns_pb2 as pb
from managed_agents.sessions.v1.turns_pb2_grpc import TurnsServiceServicer, add_TurnsServiceServicer_to_server


class Turns(TurnsServiceServicer):
    async def AppendTurnEvents(self, request, context):
        await asyncio.sleep(0.001)
        return pb.AppendTurnEventsResponse(last_seq=request.known_seq)

    async def ClaimTurns(self, requests, context):
        async for _request in requests:
            yield pb.ClaimTurnsResponse()


async def main(address: str) -> None:
    server = Server(address, service="sessions")
    server.add(add_TurnsServiceServicer_to_server, Turns())
    await server.start()
    print("serves", flush=True)
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
