"""Composition root of a runner."""

import asyncio
from functools import partial

from google.protobuf.message import DecodeError
from nats.aio.msg import Msg

from kit.addresses import PrivateHosts
from kit.ids import new_id
from kit.lifecycle import Service
from kit.nats import Nats, connect
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from kit.rpc.server import Server
from kit.telemetry import log
from managed_agents.sessions.v1.events_pb2 import TurnSignal
from managed_agents.sessions.v1.files_pb2_grpc import FilesServiceStub
from managed_agents.sessions.v1.turns_pb2_grpc import TurnsServiceStub
from managed_agents.vault.v1.injections_pb2_grpc import InjectionServiceStub
from managed_agents.vault.v1.vault_pb2 import GetModelAccessRequest, GetModelAccessResponse
from managed_agents.vault.v1.vault_pb2_grpc import SettingsServiceStub
from managed_agents.worker.v1.queue_pb2_grpc import QueueServiceStub
from managed_agents.worker.v1.runner_pb2_grpc import add_RunnerServiceServicer_to_server
from services.worker.runner.config import RunnerSettings, load_settings
from services.worker.runner.handlers.deletions import Deletions
from services.worker.runner.handlers.runner import RunnerDescription, RunnerHandler
from services.worker.runner.loop.cache import ConversationCache
from services.worker.runner.loop.claims import Claims
from services.worker.runner.loop.remote import LOOP_ENGINES
from services.worker.runner.loop.retry import RetryPolicy
from services.worker.runner.loop.rubrics import RubricReader
from services.worker.runner.loop.sessions import TurnSessions
from services.worker.runner.loop.turn import TurnServices
from services.worker.runner.loop.workspace import Workspaces
from services.worker.runner.mcp.registry import ROTATED_SUBJECT, McpServers
from services.worker.runner.mcp.session import Limits
from services.worker.runner.models import registry
from services.worker.runner.models.access import Create, ModelAccessCache
from services.worker.runner.models.base import ToolDefinition
from services.worker.runner.outside import PROVIDER as SELF_HOSTED
from services.worker.runner.outside import OutsideWork, WorkQueue
from services.worker.runner.secrets import SecretsRegistry
from services.worker.runner.web import Fetches, Searches, WebTools
from services.worker.runner.web.callout import post_json
from services.worker.runner.web.pages import PageReader
from services.worker.runner.workspace.registry import attachment_reader, mounts_of
from services.worker.sandbox import SandboxManager
from services.worker.tools import TOOL_SPECS

_START_SECONDS = 15.0


class Runner:
    """The parts of one runner process, wired and not started."""

    def __init__(
        self,
        settings: RunnerSettings,
        create_provider: Create = registry.create,
        sandboxes: SandboxManager | None = None,
        fetcher: Fetches | None = None,
    ) -> None:
        """A test may give models, sandboxes and a way to the web of its own; nothing else reaches those."""
        self.runner_id = new_id("runner")
        self._settings = settings
        self._nats: Nats | None = None
        token = settings.internal_token()
        self._channels = [
            Channel(settings.sessions_address, token=token, exchange=True),
            Channel(settings.vault_address, token=token),
        ]
        self._outside: OutsideWork | None = None
        if settings.queue_address:
            self._channels.append(Channel(settings.queue_address, token=token, exchange=True))
            queue = self._channels[-1].stub(QueueServiceStub)
            self._outside = OutsideWork(WorkQueue(queue, queue_seconds=settings.work_queue_seconds))
        turns = self._channels[0].stub(TurnsServiceStub)
        self._vault = self._channels[1].stub(SettingsServiceStub)
        self._cache = ConversationCache(settings.runner_context_cache_bytes)
        root = settings.data_dir / "sandboxes"
        self.secrets = SecretsRegistry(
            self._channels[1].stub(InjectionServiceStub), runner_id=self.runner_id, shared_secret=token
        )
        private = PrivateHosts.parse(settings.allowed_private_hosts)
        self.sandboxes = sandboxes or SandboxManager(
            root, kind=settings.sandbox_kind, private_hosts=private, secrets_of=self.secrets.of
        )
        self.servers = McpServers(
            self._channels[1].stub(InjectionServiceStub),
            runner_id=self.runner_id,
            limits=Limits(settings.mcp_connect_seconds, settings.mcp_call_seconds),
            private=private,
            bus=lambda: self._nats,
            secrets_of=self.secrets.of,
        )
        self._deletions = Deletions(root, self.sandboxes.remove, self._close_session)
        self.access = ModelAccessCache(self._fetch_access, create_provider)
        self.workspaces = Workspaces(
            self.sandboxes, mounts_of(self._channels, private), attachment_reader(self._channels)
        )
        self._pages = PageReader()
        self._web = WebTools(
            (lambda: fetcher) if fetcher is not None else self._make_fetcher,
            self._make_searcher if settings.web_search_url else None,
        )
        self._tools = {**TOOL_SPECS, **self._web.specs}
        calls = TurnSessions(turns, self._cache)
        self.claims = Claims(
            turns,
            TurnServices(
                append=calls.append,
                release=calls.release,
                load=calls.load,
                read_log=calls.read_log,
                rubrics=RubricReader(self._channels[0].stub(FilesServiceStub)),
                publish=self._publish,
                access=self.access,
                sandboxes=self.sandboxes,
                workspaces=self.workspaces,
                servers=self.servers,
                secrets=self.secrets,
                outside=self._outside,
                built_in={
                    name: ToolDefinition(name, spec.description, spec.input_schema)
                    for name, spec in self._tools.items()
                },
                web=self._web,
                callout=partial(post_json, private=private),
                retry_policy=RetryPolicy(settings.model_attempts, settings.model_retry_seconds),
                private=private,
                window_tokens=settings.context_window_tokens,
            ),
            self._cache,
            runner_id=self.runner_id,
            capacity=settings.runner_capacity,
            lease_seconds=settings.lease_seconds,
        )
        self.listen = settings.listen_address()
        self.server = Server(self.listen, service="runner", internal_token=token)
        self.server.add(
            add_RunnerServiceServicer_to_server, RunnerHandler(self._describe, lambda: self.claims.held, self.access)
        )

    def _make_fetcher(self) -> Fetches:
        from services.worker.runner.web.fetch import Fetcher

        return Fetcher(self._pages)

    def _make_searcher(self) -> Searches:
        from services.worker.runner.web.search import Searcher

        return Searcher(self._settings.web_search_url)

    def add_to(self, service: Service) -> None:
        """Hand the parts over, in the order in which they start."""
        drain_seconds = self._settings.runner_drain_seconds
        service.add("message bus", self._connect, self._disconnect)
        service.add("channels", stop=self._close_channels)
        if self._outside is not None:
            service.add("work", stop=self._outside.aclose)
        service.add("model access", stop=self.access.close)
        service.add("sandboxes", stop=self.sandboxes.aclose)
        service.add("mcp servers", stop=self.servers.aclose)
        service.add("pages", stop=self._pages.close)
        service.add("rpc", self.server.start, self.server.stop)
        service.add_task("deletions", self._follow_deletions)
        service.add_task("leases", self.claims.keep)
        service.add_task("claims", self._claim)
        service.add("turns", stop=partial(self.claims.drain, drain_seconds), stop_seconds=drain_seconds + 10)

    async def _connect(self) -> None:
        self._nats = await connect(self._settings.nats_server(), self.runner_id)
        await self._nats.subscribe_eventually(f"runners.{self.runner_id}.signals", self._hear)
        await self._nats.subscribe_eventually("settings.saved.*", self._hear_of_settings)
        await self._nats.subscribe_eventually(ROTATED_SUBJECT, self.servers.hear_of_rotation)
        await self._nats.subscribe_eventually(ROTATED_SUBJECT, self._hear_of_rotation)
        for mount in self.workspaces.mounts:
            for subject in mount.subjects:
                await self._nats.subscribe_eventually(subject, mount.hear)
            self._nats.on_reconnect(mount.doubt)
        self._nats.on_reconnect(self.access.forget)
        self._nats.on_reconnect(self.secrets.forget)

    async def _disconnect(self) -> None:
        if self._nats is not None:
            await self._nats.close()

    async def _claim(self) -> None:
        # Processes start side by side: the one that comes up later is waited for, and is no trouble to log.
        if not await self._channels[0].ready(_START_SECONDS):
            log.warning("the sessions service has not come up yet", waited_seconds=_START_SECONDS)
        await self.claims.claim()

    async def _follow_deletions(self) -> None:
        assert self._nats is not None
        await self._deletions.run(self._nats)

    async def _close_session(self, session_id: str) -> None:
        await self.servers.close(session_id)
        await self.sandboxes.close(session_id)
        self.workspaces.forget(session_id)

    async def _close_channels(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def _hear(self, message: Msg) -> None:
        try:
            self.claims.hear(TurnSignal.FromString(message.data))
        except DecodeError:
            log.warning("a signal that is none", subject=message.subject)

    async def _hear_of_settings(self, message: Msg) -> None:
        self.access.forget(message.subject.rpartition(".")[2])

    async def _hear_of_rotation(self, message: Msg) -> None:
        self.secrets.forget(message.subject.rpartition(".")[2])

    async def _publish(self, subject: str, payload: bytes) -> bool:
        return self._nats is not None and await self._nats.publish(subject, payload)

    async def _fetch_access(self, workspace_id: str) -> GetModelAccessResponse:
        context = CallContext(workspace_id, new_id("req"), self.runner_id)
        return await self._vault.GetModelAccess(GetModelAccessRequest(), context=context, retry=True)

    async def _describe(self) -> RunnerDescription:
        # The first description probes what the host allows, which blocks.
        sandbox = await asyncio.to_thread(self.sandboxes.describe)
        return RunnerDescription(
            runner_id=self.runner_id,
            capacity=self._settings.runner_capacity,
            sandbox_kind=sandbox.kind,
            sandbox_notes=sandbox.notes,
            tools=tuple(self._tools),
            sandbox_providers=(*self.sandboxes.providers, *((SELF_HOSTED,) if self._outside else ())),
            loop_engines=LOOP_ENGINES,
        )


async def build() -> Service:
    """The runner as the process environment describes it."""
    return compose(load_settings())


def compose(settings: RunnerSettings, runner: Runner | None = None) -> Service:
    """Wire a runner. A test may give one whose models or sandboxes are its own."""
    service = Service.from_settings("runner", settings)
    (runner or Runner(settings)).add_to(service)
    return service
