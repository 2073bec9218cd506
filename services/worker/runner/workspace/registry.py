"""Which mounts this build has, in the order in which they are prepared."""

from collections.abc import Awaitable, Callable, Sequence

from kit.addresses import NO_PRIVATE_HOSTS, PrivateHosts
from kit.rpc.client import Channel
from managed_agents.sessions.v1.files_pb2_grpc import FilesServiceStub
from managed_agents.sessions.v1.memory_pb2_grpc import MemoryServiceStub
from managed_agents.sessions.v1.resources_pb2 import ReadAttachmentsRequest
from managed_agents.sessions.v1.resources_pb2_grpc import ResourcesServiceStub
from managed_agents.sessions.v1.skills_pb2_grpc import SkillsServiceStub
from managed_agents.vault.v1.repository_secrets_pb2_grpc import RepositorySecretsServiceStub
from services.worker.runner.workspace.files import FileMount
from services.worker.runner.workspace.memory import MemoryMount
from services.worker.runner.workspace.mount import Mount
from services.worker.runner.workspace.outputs import OutputsMount
from services.worker.runner.workspace.repositories import RepositoryMount
from services.worker.runner.workspace.skills import SkillMount


def mounts_of(channels: Sequence[Channel], private: PrivateHosts = NO_PRIVATE_HOSTS) -> list[Mount]:
    """All mounts, over the runner's channels to the sessions service and to vault.

    `private` are hosts that the operator allows repositories to come from beside public ones.
    """
    tokens = channels[1].stub(RepositorySecretsServiceStub)
    files = channels[0].stub(FilesServiceStub)
    return [
        FileMount(files),
        RepositoryMount(tokens, private=private),
        MemoryMount(channels[0].stub(MemoryServiceStub)),
        SkillMount(channels[0].stub(SkillsServiceStub)),
        OutputsMount(files),
    ]


def attachment_reader(channels: Sequence[Channel]) -> Callable[[str], Awaitable[tuple[bytes, int]]]:
    """Asks the sessions service what is attached to a session now."""
    resources = channels[0].stub(ResourcesServiceStub)

    async def read(session_id: str) -> tuple[bytes, int]:
        answer = await resources.ReadAttachments(ReadAttachmentsRequest(session_id=session_id), retry=True)
        return answer.resources_json, answer.session_revision

    return read
