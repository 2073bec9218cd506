"""RunnerService: what a runner tells the gateway about itself and its models."""

from typing import Any

import pytest

from kit.errors import Unavailable
from kit.rpc.client import channel
from kit.rpc.context import CallContext
from managed_agents.worker.v1.runner_pb2 import DescribeRunnerRequest, ListModelsRequest
from managed_agents.worker.v1.runner_pb2_grpc import RunnerServiceStub
from services.worker.runner.models.base import ModelError, ModelErrorKind, ModelInfo
from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World
from tests.integration.runner.played import ScriptedModel, say

CONTEXT = CallContext(workspace_id="wrkspc_default", principal_id="gateway")


async def test_a_runner_describes_itself(platform: World) -> None:
    sandboxes = SandboxManager(platform.folder / "sandboxes")
    async with platform.runner(sandboxes=sandboxes, runner_capacity=7) as runner:
        connection = channel(runner.listen)
        about: Any = await connection.stub(RunnerServiceStub).DescribeRunner(DescribeRunnerRequest(), context=CONTEXT)
        await connection.close()
    assert about.runner_id == runner.runner_id and about.runner_id.startswith("runner_")
    assert (about.capacity, about.held) == (7, 0)
    assert list(about.tools) == ["bash", "read", "write", "edit", "glob", "grep", "web_fetch"]
    assert about.sandbox_kind and list(about.sandbox_providers) == ["local"]


async def test_models_come_from_the_vendor_and_are_remembered(platform: World) -> None:
    class Vendor(ScriptedModel):
        away = False

        async def list_models(self) -> list[ModelInfo]:
            if self.away:
                raise ModelError(ModelErrorKind.CONNECTION, "not there")
            return [ModelInfo("big", "Big", "2026-01-01T00:00:00Z", 200_000, 8_000)]

    vendor = Vendor([say("x")])
    async with platform.runner(vendor) as runner:
        connection = channel(runner.listen)
        stub = connection.stub(RunnerServiceStub)
        vendor.away = True
        with pytest.raises(Unavailable, match="not there"):
            await stub.ListModels(ListModelsRequest(), context=CONTEXT)
        vendor.away = False
        (model,) = (await stub.ListModels(ListModelsRequest(), context=CONTEXT)).models
        assert (model.id, model.max_input_tokens) == ("big", 200_000)
        vendor.away = True
        assert (await stub.ListModels(ListModelsRequest(), context=CONTEXT)).models[0].id == "big"
        await connection.close()
