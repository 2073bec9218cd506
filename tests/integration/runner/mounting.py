"""Files and resources for tests of what is mounted, over a real sessions service."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson

from kit.errors import DomainError
from kit.rpc.client import Channel, channel
from kit.rpc.context import CallContext
from managed_agents.sessions.v1 import agents_pb2, resources_pb2, sessions_pb2
from managed_agents.sessions.v1.common_pb2 import Page
from managed_agents.sessions.v1.files_pb2 import (
    FILE_PURPOSE_OUTPUT,
    FILE_PURPOSE_UPLOAD,
    ArchiveFileRequest,
    DownloadFileRequest,
    File,
    ListFilesRequest,
    UploadFileEnd,
    UploadFileRequest,
    UploadFileStart,
)
from managed_agents.sessions.v1.files_pb2_grpc import FilesServiceStub
from managed_agents.sessions.v1.resources_pb2_grpc import ResourcesServiceStub
from tests.integration.runner.harness import World
from tests.integration.runner.played import TOOLSET
from tests.integration.sessions.turn_driver import WORKSPACE


class Mounting:
    """Uploads, attaches, and reads what came out."""

    def __init__(self, platform: World) -> None:
        self.platform = platform
        self._channel: Channel = channel(platform.sessions_address)
        self._context = CallContext(workspace_id=WORKSPACE, principal_id="test")
        self.files = self._channel.stub(FilesServiceStub)
        self._resources = self._channel.stub(ResourcesServiceStub)

    async def close(self) -> None:
        """Let the channel go."""
        await self._channel.close()

    async def upload(self, content: bytes, name: str = "data.txt") -> str:
        """A file's id."""

        async def messages() -> AsyncIterator[UploadFileRequest]:
            yield UploadFileRequest(start=UploadFileStart(purpose=FILE_PURPOSE_UPLOAD, name=name))
            yield UploadFileRequest(chunk=content)
            yield UploadFileRequest(end=UploadFileEnd())

        return (await self.files.UploadFile(messages(), context=self._context)).file.id

    async def archive(self, file_id: str) -> None:
        """Delete a file."""
        await self.files.ArchiveFile(ArchiveFileRequest(file_id=file_id), context=self._context)

    async def session(self, *resources: dict[str, Any], **fields: Any) -> str:
        """A session with these resources."""
        clients = self.platform.clients
        agent = {"name": "tester", "model": "default", "system": "Be brief.", "tools": [TOOLSET]}
        created = await clients.agents.CreateAgent(agents_pb2.CreateAgentRequest(definition_json=orjson.dumps(agent)))
        body = {"agent": created.agent.id, "resources": list(resources)} | fields
        request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps(body))
        return (await clients.sessions.CreateSession(request)).session.id

    async def attach(self, session_id: str, **resource: Any) -> dict[str, Any]:
        """One more resource."""
        request = resources_pb2.AttachResourceRequest(session_id=session_id, definition_json=orjson.dumps(resource))
        return orjson.loads((await self._call("AttachResource", request)).resource_json)

    async def detach(self, session_id: str, resource_id: str) -> None:
        """Take a resource off."""
        request = resources_pb2.DetachResourceRequest(session_id=session_id, resource_id=resource_id)
        await self._call("DetachResource", request)

    async def rotate(self, session_id: str, resource_id: str, token: str) -> None:
        """Another token."""
        patch = orjson.dumps({"authorization_token": token})
        request = resources_pb2.RotateResourceTokenRequest(
            session_id=session_id, resource_id=resource_id, patch_json=patch
        )
        await self._call("RotateResourceToken", request)

    async def resources(self, session_id: str) -> list[dict[str, Any]]:
        """What is attached."""
        request = resources_pb2.ListResourcesRequest(session_id=session_id)
        return orjson.loads((await self._call("ListResources", request)).resources_json)

    async def outputs(self, session_id: str) -> dict[str, File]:
        """The outputs of a session by path, below the folder of outputs."""
        request = ListFilesRequest(scope_id=session_id, page=Page(limit=1000))
        listed = (await self.files.ListFiles(request, context=self._context)).files
        return {
            each.path.removeprefix("/mnt/session/outputs/"): each
            for each in listed
            if each.purpose == FILE_PURPOSE_OUTPUT
        }

    async def content(self, file_id: str) -> bytes:
        """The bytes of a file."""
        request = DownloadFileRequest(file_id=file_id)
        return b"".join([part.chunk async for part in self.files.DownloadFile(request, context=self._context)])

    async def bash(self, session_id: str, command: str, *, seconds: float = 30) -> list[dict[str, Any]]:
        """Have a command run in a turn; the log after it."""
        await self.platform.say(session_id, f"TOOL:bash:{orjson.dumps({'command': command}).decode()}")
        return await self.platform.until(session_id, seconds=seconds)

    async def _call(self, method: str, request: Any) -> Any:
        return await partial(getattr(self._resources, method), context=self._context)(request)


async def refusal(awaitable: Any) -> DomainError:
    """What a call is refused with."""
    try:
        await awaitable
    except DomainError as refused:
        return refused
    raise AssertionError("nothing was refused")
