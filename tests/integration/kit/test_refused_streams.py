"""Who still sends as a stream of requests is refused hears the refusal, and not that its sending failed."""

import asyncio

import pytest

from kit import errors
from kit.rpc.client import Channel
from kit.rpc.context import CallContext, use_context
from kit.rpc.server import Server
from managed_agents.sessions.v1 import files_pb2 as pb
from managed_agents.sessions.v1.files_pb2_grpc import (
    FilesServiceServicer,
    FilesServiceStub,
    add_FilesServiceServicer_to_server,
)

CHUNK = pb.UploadFileRequest(chunk=b"x" * 256 * 1024)


class Refused(errors.InvalidArgument):
    reason = "INVALID_FILE_NAME"


class Files(FilesServiceServicer):
    """Refuses each upload after some messages."""

    def __init__(self, after: int) -> None:
        self._after = after

    async def UploadFile(self, request_iterator, context):
        seen = 0
        while seen < self._after:
            await anext(aiter(request_iterator))
            seen += 1
        raise Refused("Not this one.")


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_the_refusal_arrives_whatever_is_on_its_way(tmp_path, after: int) -> None:
    server = Server(f"unix:{tmp_path}/rpc.sock", service="sessions", grace_seconds=5)
    server.add(add_FilesServiceServicer_to_server, Files(after))
    await server.start()
    channel = Channel(f"unix:{tmp_path}/rpc.sock")
    stub = channel.stub(FilesServiceStub)

    async def parts():
        for _ in range(8):
            yield CHUNK

    async def ask() -> None:
        with use_context(CallContext("wrkspc_a", "req_1", "key_1", False)), pytest.raises(errors.DomainError) as found:
            await stub.UploadFile(parts())
        assert found.value.reason == "INVALID_FILE_NAME"

    try:
        for _ in range(25):
            await asyncio.gather(*(ask() for _ in range(8)))
    finally:
        await channel.close()
        await server.stop()
