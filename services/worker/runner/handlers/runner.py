"""RunnerService: what this process can do, and which models it can reach."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc

from kit.errors import Unavailable
from kit.rpc.server import current_context
from managed_agents.worker.v1.runner_pb2 import (
    DescribeRunnerRequest,
    DescribeRunnerResponse,
    ListModelsRequest,
    ListModelsResponse,
    Model,
)
from managed_agents.worker.v1.runner_pb2_grpc import RunnerServiceServicer
from services.worker.runner.models.access import ModelAccessCache
from services.worker.runner.models.base import ModelError


@dataclass(frozen=True, slots=True)
class RunnerDescription:
    """What does not change while the process lives."""

    runner_id: str
    capacity: int
    sandbox_kind: str
    sandbox_notes: Sequence[str]
    tools: Sequence[str]
    sandbox_providers: Sequence[str]
    loop_engines: Sequence[str] = ()


class RunnerHandler(RunnerServiceServicer):
    """Answers the gateway."""

    def __init__(
        self, describe: Callable[[], Awaitable[RunnerDescription]], held: Callable[[], int], access: ModelAccessCache
    ) -> None:
        self._describe = describe
        self._held = held
        self._access = access
        # The vendor's last answer by workspace, with the revision of the access that it belongs to.
        self._known: dict[str, tuple[int, ListModelsResponse]] = {}

    async def DescribeRunner(
        self, request: DescribeRunnerRequest, context: grpc.aio.ServicerContext
    ) -> DescribeRunnerResponse:
        """Tell about the process."""
        about = await self._describe()
        return DescribeRunnerResponse(
            runner_id=about.runner_id,
            capacity=about.capacity,
            held=self._held(),
            sandbox_kind=about.sandbox_kind,
            sandbox_notes=about.sandbox_notes,
            tools=about.tools,
            sandbox_providers=about.sandbox_providers,
            loop_engines=about.loop_engines,
        )

    async def ListModels(self, request: ListModelsRequest, context: grpc.aio.ServicerContext) -> ListModelsResponse:
        """Ask the vendor; answer what it said before where it can't be asked."""
        workspace_id = current_context().workspace_id
        revision = -1
        try:
            async with self._access.use(workspace_id) as model:
                revision = model.access.revision
                models = await model.provider.list_models()
        except ModelError as error:
            known = self._known.get(workspace_id)
            if known is not None and revision in (-1, known[0]):
                return known[1]
            raise Unavailable(f"The model vendor can't be asked for its models: {error.message}") from error
        answer = ListModelsResponse(
            models=[
                Model(
                    id=found.id,
                    display_name=found.display_name,
                    created_at=found.created_at,
                    max_input_tokens=found.max_input_tokens,
                    max_output_tokens=found.max_output_tokens,
                )
                for found in models
            ]
        )
        self._known[workspace_id] = revision, answer
        return answer
