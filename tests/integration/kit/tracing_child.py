"""One request through everything that kit offers, with tracing on: rpc, SQL, outbox, relay, consumer."""

import asyncio
import sys

from kit import outbox, telemetry
from kit.consumer import Consumer
from kit.nats import connect
from kit.postgres import Database
from kit.relay import Relay
from kit.rpc.client import Channel
from kit.rpc.context import CallContext, current_context
from kit.rpc.server import Server
from managed_agents.sessions.v1 import turns_pb2 as pb
from managed_agents.sessions.v1.turns_pb2_grpc import (
    TurnsServiceServicer,
    TurnsServiceStub,
    add_TurnsServiceServicer_to_server,
)


class Turns(TurnsServiceServicer):
    def __init__(self, database: Database, subject: str) -> None:
        self.database = database
        self.subject = subject
        self.stored = ""

    async def AppendTurnEvents(self, request, context):
        async with self.database.transaction(current_context().workspace_id) as tx:
            await outbox.add(tx, message_id="m1", subject=self.subject, payload=b"x")
        self.stored = telemetry.traceparent()
        return pb.AppendTurnEventsResponse()

    async def ReadTurnContext(self, request, context):
        raise ValueError("a failure")
        yield


async def main(dsn: str, url: str, stream: str, socket: str) -> None:
    telemetry.setup("traced")
    database, nats, done = Database(dsn, "box"), await connect(url, "traced"), asyncio.Event()
    await database.open()
    relay = Relay(database, nats, stream, [f"{stream}.>"])
    turns = Turns(database, f"{stream}.x")
    server = Server(f"unix:{socket}", service="sessions")
    server.add(add_TurnsServiceServicer_to_server, turns)

    async def consume(tx, message) -> None:
        with telemetry.tracer().start_as_current_span("effect"):
            done.set()

    consumer = Consumer(database, nats, stream=stream, name="c", subjects=[f"{stream}.>"], handler=consume)
    for part in (relay, consumer, server):
        await part.start()
    channel = Channel(f"unix:{socket}")
    stub, context = channel.stub(TurnsServiceStub), CallContext("wrkspc_a", "req_1")
    with telemetry.tracer().start_as_current_span("request"):
        await stub.AppendTurnEvents(pb.AppendTurnEventsRequest(), context=context)
    relay.wake()
    with telemetry.continue_trace(turns.stored, "turn", epoch=1):
        try:
            [answer async for answer in stub.ReadTurnContext(pb.ReadTurnContextRequest(), context=context)]
        except Exception as error:
            print(type(error).__name__)
    await done.wait()
    await channel.close()
    for part in (server, consumer, relay, nats, database):
        await (part.close() if hasattr(part, "close") else part.stop())
    telemetry.flush()


asyncio.run(main(*sys.argv[1:]))
