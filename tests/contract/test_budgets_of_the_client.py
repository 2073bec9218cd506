"""The published client works with budgets under strict validation: create, cross, refuse, raise, remove, read back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import orjson
import pytest

from kit.testing import await_until
from tests.contract.client_flow import TOOLSET, Flow, user
from tests.support.api import Api, Refused, api, message, tool
from tests.support.platform import Platform, running_platform

pytestmark = [pytest.mark.timeout(180)]

# Ten cents a token of an answer; what is read costs nothing.
_PRICES = {"input": 0, "output": "100000", "cache_read": 0, "cache_write_5m": 0, "cache_write_1h": 0}
# What the demo model takes for a call.
CALL_CENTS = 80
ASK = message(tool("bash", command="echo hi"))["content"][0]["text"]


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform whose operator listed a price for `default`, in a file that a relative path names."""
    folder = tmp_path_factory.mktemp("priced")
    prices = folder / "prices.json"
    prices.write_bytes(orjson.dumps({"models": {"default": _PRICES}}))
    with running_platform(folder / "data", environment={"MANAGED_AGENTS_COST_PROFILE": str(prices)}) as running:
        yield running


@pytest.fixture
async def flow(priced: Platform) -> AsyncIterator[Flow]:
    async with anthropic.AsyncAnthropic(
        api_key="any", base_url=priced.url, max_retries=0, timeout=60, _strict_response_validation=True
    ) as client:
        yield Flow(client)


@pytest.fixture
async def local(priced: Platform) -> AsyncIterator[Api]:
    async with api(priced.url) as client:
        yield client


def cents(amount: int) -> dict[str, Any]:
    return {"type": "limit", "max_list_cost": {"amount": str(amount), "currency": "USD"}}


async def heard(flow: Flow, session_id: str, start: Any) -> list[Any]:
    """What a stream brings from `start` on, up to the next idle."""
    events = []
    async with await flow.client.beta.sessions.events.stream(session_id) as stream:
        await start()
        async for event in stream:
            events.append(event)
            if event.type == "session.status_idle":
                return events
    raise AssertionError("the stream ended before the session was idle")


async def test_a_budget_from_its_creation_to_its_removal(flow: Flow) -> None:
    agent = await flow.client.beta.agents.create(name="a", model="default", tools=[TOOLSET])
    session = await flow.sessions.create(agent=agent.id, environment_id=flow.environment, budget=cents(50))
    assert session.budget.max_list_cost.amount == "50"
    assert session.usage.list_cost.amount == "0"

    events = await heard(flow, session.id, lambda: flow.sessions.events.send(session.id, events=[user(ASK)]))
    assert [event.type for event in events[-4:]] == [
        *("agent.tool_result", "session.thread_status_idle", "session.usage", "session.status_idle")
    ]
    assert [event.stop_reason.type for event in (events[-1], events[-3])] == ["budget_reached", "budget_reached"]
    assert events[-2].usage.list_cost.amount == str(CALL_CENTS)
    assert events[-2].usage.list_cost.currency == "USD"
    assert events[-2].budget.max_list_cost.amount == "50"
    assert (await flow.sessions.retrieve(session.id)).usage.list_cost.amount == str(CALL_CENTS)

    with pytest.raises(anthropic.BadRequestError) as refused:
        await flow.sessions.events.send(session.id, events=[user("more")])
    error = refused.value.body["error"]
    assert (error["code"], error["details"]["error_code"]) == ("budget_reached", "budget_reached")
    assert "user.custom_tool_result" in error["details"]["accepted"]
    taken = await flow.sessions.events.send(session.id, events=[{"type": "user.interrupt"}])
    assert taken.data == []

    for amount in (1, CALL_CENTS):
        with pytest.raises(anthropic.BadRequestError) as not_raised:
            await flow.sessions.update(session.id, budget=cents(amount))
        assert not_raised.value.body["error"]["details"] == {"error_code": "budget_not_raised"}

    changed: list[Any] = []

    async def remove() -> None:
        changed.append(await flow.sessions.update(session.id, budget=None))

    resumed = await heard(flow, session.id, remove)
    assert changed[0].budget is None
    assert [event.type for event in resumed[:2]] == ["session.updated", "session.status_running"]
    assert "budget" in resumed[0].model_fields_set and resumed[0].budget is None
    assert resumed[-1].stop_reason.type == "end_turn"
    with pytest.raises(anthropic.BadRequestError) as gone:
        await flow.sessions.update(session.id, budget=cents(9000))
    assert gone.value.body["error"]["details"] == {"error_code": "budget_create_only"}
    logged = [event async for event in flow.client.beta.sessions.events.list(session.id)]
    assert [event.type for event in logged].count("session.usage") == 2


async def test_a_raise_resumes_and_lists_show_the_budget(flow: Flow) -> None:
    agent = await flow.client.beta.agents.create(name="b", model="default", tools=[TOOLSET])
    session = await flow.sessions.create(
        agent=agent.id, environment_id=flow.environment, budget=cents(1), initial_events=[user(ASK)]
    )

    async def is_idle() -> bool:
        return (await flow.sessions.retrieve(session.id)).status == "idle"

    await await_until(is_idle)
    resumed = await heard(flow, session.id, lambda: flow.sessions.update(session.id, budget=cents(100_000)))
    assert resumed[0].budget.max_list_cost.amount == "100000"
    assert resumed[-1].stop_reason.type == "end_turn"
    listed = [each async for each in flow.client.beta.sessions.list(agent_id=agent.id)]
    assert [each.budget.max_list_cost.amount for each in listed] == ["100000"]


async def test_only_listed_models_can_be_budgeted(flow: Flow) -> None:
    agent = await flow.client.beta.agents.create(name="c", model="claude-unlisted")
    with pytest.raises(anthropic.BadRequestError) as refused:
        await flow.sessions.create(agent=agent.id, environment_id=flow.environment, budget=cents(500))
    error = refused.value.body["error"]
    assert (error["code"], error["details"]) == (
        "budget_model_without_list_price",
        {"error_code": "model_not_budgetable"},
    )


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        ({"type": "limit", "max_list_cost": {"amount": "25.00", "currency": "USD"}}, "budget_invalid_amount"),
        ({"type": "limit", "max_list_cost": {"amount": "0", "currency": "USD"}}, "budget_invalid_amount"),
        ({"type": "limit", "max_list_cost": {"amount": "0125", "currency": "USD"}}, "budget_invalid_amount"),
        ({"type": "limit", "max_list_cost": {"amount": "500", "currency": "EUR"}}, "budget_invalid_currency"),
        ({"type": "cap", "max_list_cost": {"amount": "500", "currency": "USD"}}, "budget_invalid_shape"),
        (None, "budget_invalid_shape"),
    ],
)
async def test_a_malformed_budget_creates_nothing(local: Api, budget: Any, code: str) -> None:
    agent = await local.agent()
    with pytest.raises(Refused) as refused:
        await local.session(agent, budget=budget)
    assert (refused.value.status, refused.value.body["error"]["code"]) == (400, code)
    listed = await local.call("GET", f"/v1/sessions?agent_id={agent}")
    assert listed["data"] == []


async def test_a_local_caller_reads_whole_cents_and_tells_never_from_removed(local: Api) -> None:
    agent = await local.agent()
    plain = await local.call("POST", "/v1/sessions", {"agent": agent})
    assert "budget" not in plain
    made = await local.call("POST", "/v1/sessions", {"agent": agent, "budget": cents(1)})
    assert made["budget"] == cents(1)
    await local.send(made["id"], message(ASK))

    async def is_idle() -> bool:
        return await local.status(made["id"]) == "idle"

    await await_until(is_idle)
    usage = (await local.log(made["id"]))[-2]["usage"]
    assert (usage["list_cost"], usage["budget"]) == (CALL_CENTS, cents(1))
    assert usage["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 0}
    assert usage["active_seconds"] > 0
    shown = await local.call("GET", f"/v1/sessions/{made['id']}")
    assert shown["usage"]["list_cost"] == CALL_CENTS
    assert [(each["model"], each["list_cost_usd"]) for each in shown["usage"]["models"]] == [("demo", "0.8")]
    removed = await local.call("POST", f"/v1/sessions/{made['id']}", {"budget": None})
    assert removed["budget"] is None and removed["status"] == "running"
