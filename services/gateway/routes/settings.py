"""The runtime settings: read, judged, tried and saved. Outside the published contract, and for the operator."""

from __future__ import annotations

from typing import Any

import orjson

from kit.errors import DomainError
from kit.nats import Nats
from managed_agents.vault.v1.vault_pb2 import (
    GetSettingsRequest,
    SaveSettingsRequest,
    TestSettingsRequest,
    ValidateSettingsRequest,
)
from managed_agents.worker.v1.runner_pb2 import DescribeRunnerRequest, DescribeRunnerResponse

from ..operation import Call, Operation
from ..render.settings import RUNNER_AREAS, render_settings, render_test, render_validation
from ..schemas.settings import (
    RuntimeSettings,
    SettingsCandidate,
    SettingsSave,
    SettingsTest,
    SettingsTestResult,
    SettingsValidation,
)

TAG = "Settings"
PATH = "/v1/x/settings"
# A runner that does not answer within this is told as away, not waited for.
RUNNER_SECONDS = 2.0


class SettingsRoutes:
    """The routes, with the bus over which runners hear that there is something new."""

    def __init__(self, nats: Nats) -> None:
        self._nats = nats

    async def get(self, call: Call) -> bytes:
        """GET /v1/x/settings."""
        return render_settings(
            await call.ask(call.clients.settings.GetSettings, GetSettingsRequest()), await _runner(call)
        )

    async def validate(self, call: Call) -> bytes:
        """POST /v1/x/settings/validate."""
        sent: dict[str, Any] = call.body.model_extra
        wrapped = sent.keys() == {"config"}
        document = orjson.dumps(sent["config"]) if wrapped else call.raw_body
        request = ValidateSettingsRequest(document_json=document)
        return render_validation(await call.ask(call.clients.settings.ValidateSettings, request))

    async def test(self, call: Call) -> bytes:
        """POST /v1/x/settings/test."""
        area = call.body.area
        request = TestSettingsRequest(area=area, config_json=orjson.dumps(call.body.config))
        verdict = await call.ask(call.clients.settings.TestSettings, request)
        return render_test(area, verdict, await _runner(call) if area in RUNNER_AREAS else None)

    async def save(self, call: Call) -> bytes:
        """PUT /v1/x/settings. Once this is answered, runners have been told to ask anew."""
        request = SaveSettingsRequest(revision=call.body.revision, document_json=orjson.dumps(call.body.config))
        answer = await call.ask(call.clients.settings.SaveSettings, request)
        # Lost with the bus, this costs the seconds that a runner trusts what it was told before.
        await self._nats.publish(f"settings.saved.{call.context.workspace_id}", b"")
        await self._nats.flush()
        return render_settings(answer.settings, await _runner(call))

    def operations(self) -> tuple[Operation, ...]:
        """The operations of this module."""
        return (
            Operation(
                "GET",
                PATH,
                self.get,
                tag=TAG,
                needs="operator",
                summary="Read the settings that are saved and those in effect",
                response=RuntimeSettings,
            ),
            Operation(
                "POST",
                f"{PATH}/validate",
                self.validate,
                tag=TAG,
                needs="operator",
                summary="Judge a whole settings document without saving it",
                description="The body is the document, or what a save would send. A faulty one is refused with every "
                "fault and its path in `error.details.errors`.",
                body=SettingsCandidate,
                response=SettingsValidation,
            ),
            Operation(
                "POST",
                f"{PATH}/test",
                self.test,
                tag=TAG,
                needs="operator",
                summary="Try one area of the settings without saving it",
                description="Areas: model, loop_engine, storage.metadata, storage.artifacts, memory, sandbox. A masked "
                "secret stands for the stored one. What this build lacks answers as `unavailable`.",
                body=SettingsTest,
                response=SettingsTestResult,
            ),
            Operation(
                "PUT",
                PATH,
                self.save,
                tag=TAG,
                needs="operator",
                summary="Save a whole settings document",
                description="`revision` is the one that was read; at another one the save is refused with 409. A "
                "section that is left out has its defaults, and a masked secret keeps the stored one. What is saved "
                "is in effect with the next turn.",
                body=SettingsSave,
                response=RuntimeSettings,
            ),
        )


async def _runner(call: Call) -> DescribeRunnerResponse | None:
    """What the runner says of itself, or None where it does not."""
    try:
        return await call.ask(call.clients.runner.DescribeRunner, DescribeRunnerRequest(), seconds=RUNNER_SECONDS)
    except DomainError:
        return None
