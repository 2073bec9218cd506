"""What the turns of a runner share: ways to the log, to models, to sandboxes and what is in them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from kit.addresses import NO_PRIVATE_HOSTS, PrivateHosts
from managed_agents.sessions.v1.events_pb2 import Event
from managed_agents.sessions.v1.turns_pb2 import AppendTurnEventsRequest, AppendTurnEventsResponse, TurnGrant
from services.worker.runner.loop import retry, threads
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.guardrails import Callout
from services.worker.runner.loop.leases import Lease
from services.worker.runner.loop.previews import Publish
from services.worker.runner.loop.rubrics import RubricReader
from services.worker.runner.loop.workspace import Workspaces
from services.worker.runner.mcp.registry import McpServers
from services.worker.runner.models.access import ModelAccessCache
from services.worker.runner.models.base import ToolDefinition
from services.worker.runner.outside import OutsideWork
from services.worker.runner.secrets import SecretsRegistry
from services.worker.runner.web import WebTools


@dataclass(frozen=True, slots=True)
class TurnServices:
    """What the turns of a runner share."""

    append: Callable[[Lease, AppendTurnEventsRequest], Awaitable[AppendTurnEventsResponse]]
    # Gives a turn back, with calls left open where the last argument is true.
    release: Callable[[Lease, bool], Awaitable[object]]
    # The conversation of a session up to now; from the log alone where the last argument is true.
    load: Callable[[TurnGrant, Lease, bool], Awaitable[Conversation]]
    # The context events of a session from its beginning, whatever was compacted.
    read_log: Callable[[Lease], AsyncIterator[Event]]
    rubrics: RubricReader
    publish: Publish
    access: ModelAccessCache
    sandboxes: threads.Sandboxes
    workspaces: Workspaces
    built_in: Mapping[str, ToolDefinition]
    web: WebTools | None = None
    retry_policy: retry.RetryPolicy = field(default_factory=retry.RetryPolicy)
    # Asks the endpoints of guardrails.
    callout: Callout | None = None
    # None where this runner has none, as in tests of other parts.
    servers: McpServers | None = None
    # The same.
    secrets: SecretsRegistry | None = None
    # The same.
    outside: OutsideWork | None = None
    # Hosts at which the operator lets outside agents be, although their addresses are private.
    private: PrivateHosts = NO_PRIVATE_HOSTS
    # What the models take, in tokens; 0 leaves it to the table of known models.
    window_tokens: int = 0
