"""Vaults of sessions with the published client and locally: named at creation, checked, shown, never changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import orjson
import pytest
from anthropic.types.beta.sessions import BetaManagedAgentsSessionErrorEvent
from anthropic.types.beta.sessions.beta_managed_agents_credential_host_unreachable_error_object import (
    BetaManagedAgentsCredentialHostUnreachableErrorObject,
)

from managed_agents.sessions.v1.events_pb2 import Event
from services.gateway.render.events import render_event
from services.worker.runner.loop.secrets import TurnSecrets
from services.worker.runner.secrets import SessionSecrets
from services.worker.tools import ToolOutcome
from tests.contract.client_flow import Flow
from tests.e2e.test_runs import api
from tests.support.api import Refused
from tests.support.injection import Vault, secrets_of, variable
from tests.support.platform import Platform

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture
async def flow(platform: Platform) -> AsyncIterator[Flow]:
    async with anthropic.AsyncAnthropic(
        api_key="any", base_url=platform.url, max_retries=0, timeout=60, _strict_response_validation=True
    ) as client:
        yield Flow(client)


async def test_a_session_shows_its_vaults_in_their_order(flow: Flow) -> None:
    vaults = flow.client.beta.vaults
    names = [(await vaults.create(display_name=name)).id for name in ("second", "first")][::-1]
    agent = await flow.agent()
    made = await flow.sessions.create(agent=agent.id, environment_id=flow.environment, vault_ids=names)
    assert made.vault_ids == names == (await flow.sessions.retrieve(made.id)).vault_ids
    assert names in [each.vault_ids async for each in await flow.sessions.list(agent_id=agent.id)]
    with pytest.raises(anthropic.BadRequestError):
        await flow.sessions.update(made.id, vault_ids=names[:1])
    # A vault that is archived or gone takes nothing from the sessions that are there.
    await vaults.archive(names[0])
    await vaults.delete(names[1])
    assert (await flow.sessions.retrieve(made.id)).vault_ids == names
    for refused in names:
        with pytest.raises(anthropic.BadRequestError):
            await flow.sessions.create(agent=agent.id, environment_id=flow.environment, vault_ids=[refused])


async def test_a_vault_that_can_not_be_named_is_refused_by_its_place(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        live, archived = [(await client.call("POST", "/v1/credential-vaults", {"name": "v"}))["id"] for _ in range(2)]
        await client.call("POST", f"/v1/credential-vaults/{archived}/archive", {})
        for named, code in (([live, archived], "vault_archived"), ([live, "vlt_nope"], "vault_not_found")):
            message = {"type": "user.message", "content": "hi"}
            for path, body in (
                ("/v1/sessions", {"vault_ids": named}),
                ("/v1/sessions", {"vault_ids": named, "initial_events": [message]}),
                ("/v1/runs", {"session": {"vault_ids": named}, "input": "hi"}),
            ):
                with pytest.raises(Refused) as refused:
                    await client.call("POST", path, {"agent": agent, **body})
                assert (refused.value.status, refused.value.body["error"]["code"]) == (400, code)
        assert (await client.call("GET", f"/v1/sessions?agent_id={agent}"))["data"] == []
        run = await client.call("POST", "/v1/runs", {"agent": agent, "session": {"vault_ids": [live]}, "input": "hi"})
        session = await client.call("GET", f"/v1/sessions/{run['session_id']}")
        assert session["vault_ids"] == [live]


def test_a_credential_that_was_stopped_is_told_as_the_client_knows_it() -> None:
    vault = Vault(variable("TOKEN", "value-of-it", "api.example"))
    told: list[tuple[str, Any]] = []
    secrets = secrets_of(vault)
    asyncio.run(_refuse(secrets, told))
    ((kind, fields),) = told
    times = {"created_at": "2026-01-01T00:00:00Z", "processed_at": "2026-01-01T00:00:00Z"}
    body = orjson.dumps({"id": "sevt_1", "type": kind, "seq": 1, **times, **fields})
    shown = orjson.loads(render_event(Event(id="sevt_1", type=kind, seq=1, body=body), published=True))
    event = BetaManagedAgentsSessionErrorEvent.model_validate(shown, strict=False)
    assert isinstance(event.error, BetaManagedAgentsCredentialHostUnreachableErrorObject)
    assert (event.error.vault_id, event.error.credential_id) == ("vlt_1", "vcrd_token")
    assert event.error.retry_status.type == "retrying"


async def _refuse(secrets: SessionSecrets, told: list[tuple[str, Any]]) -> None:
    await secrets.placeholders()
    secrets.note_refusal("TOKEN", "evil.example")
    place = TurnSecrets(secrets, lambda kind, fields: told.append((kind, fields))).over(_Nothing())
    await place.run_tool("bash", {})


class _Nothing:
    async def run_tool(self, name: str, value: object) -> ToolOutcome:
        return ToolOutcome("")

    def interrupt(self) -> bool:
        return False
