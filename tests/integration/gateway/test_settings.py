"""Runtime settings over REST against a real vault: reading, judging, trying, saving, and who may."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from kit.testing.swept import SweptDatabases
from tests.integration.gateway.conftest import MODEL_KEY, Gateway, beside, calling

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def unchanged(platform: Gateway, swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[Gateway]:
    """A vault for all tests that save nothing."""
    async with swept_databases.maker() as make, beside(platform, make, nats_url) as listening:
        yield listening


@pytest.fixture
def gateway(unchanged: Gateway) -> Gateway:
    return unchanged


@pytest_asyncio.fixture(loop_scope="package")
async def own_http(own_vault: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A caller who may save settings, since nobody else has that vault."""
    async with calling(own_vault) as client:
        yield client


MASK = "********"
PATH = "/v1/x/settings"
KEY = "sk-canary-0123456789abcdef"


async def read(http: httpx2.AsyncClient) -> dict[str, Any]:
    answer = await http.get(PATH)
    assert answer.status_code == 200 and MODEL_KEY not in answer.text and KEY not in answer.text
    return answer.json()


def error_of(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert MODEL_KEY not in answer.text and KEY not in answer.text
    return answer.json()["error"]


async def test_what_is_read_says_what_is_saved_in_effect_and_possible(http: httpx2.AsyncClient) -> None:
    found = await read(http)
    assert (found["schema_version"], found["revision"], found["effective_revision"]) == (1, 0, 0)
    model = {"vendor": "openai", "base_url": None, "api_key": MASK, "default_model": "m", "options": {}}
    assert found["saved_config"]["model"] == model
    assert found["effective_config"] == found["saved_config"]
    assert (found["restart_required"], found["activation_status"], found["activation_errors"]) == (False, "active", [])
    assert found["secret_states"] == {"model": {"api_key": "configured"}}
    assert found["diagnostics"]["metadata"] == {"provider": "postgres", "path": "vault.settings", "health": "ok"}
    assert found["diagnostics"]["sandbox"]["kind"] == "process"
    engines = {each["id"]: each for each in found["adapters"]["loop_engine"]}
    assert engines["builtin"]["status"] == "available" and engines["pi"]["reason"]
    assert engines["builtin"]["options_schema"]["properties"]["default_max_steps"]["default"] == 25


async def test_the_way_of_a_change_read_judge_try_save(own_http: httpx2.AsyncClient) -> None:
    http = own_http
    found = await read(http)
    document = copy.deepcopy(found["saved_config"])
    document["loop_engine"]["options"] = {"default_max_steps": 7, "requires_action_timeout_seconds": 60}
    document["model"]["default_model"] = "n"
    body = {"revision": found["revision"], "config": document}
    changed = [
        "loop_engine.options.default_max_steps",
        "loop_engine.options.requires_action_timeout_seconds",
        "model.default_model",
    ]
    for candidate in (document, {"config": document}, body):
        judged = await http.post(f"{PATH}/validate", json=candidate)
        assert judged.status_code == 200 and judged.json()["valid"] is True
        assert judged.json()["changed_paths"] == changed and judged.json()["config"] == document
    assert await read(http) == found

    tried = await http.post(f"{PATH}/test", json={"area": "model", "config": document["model"]})
    assert tried.json()["ok"] is True

    saved = await http.put(PATH, json=body)
    assert saved.status_code == 200 and saved.json() == await read(http)
    assert (saved.json()["revision"], saved.json()["effective_revision"]) == (1, 1)
    assert saved.json()["effective_config"] == saved.json()["saved_config"] == document
    assert saved.json()["restart_required"] is False

    conflict = error_of(stale := await http.put(PATH, json=body), 409)
    assert (conflict["type"], conflict["code"]) == ("conflict", "settings_revision_conflict")
    assert stale.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("revision", ["1", 1.5, True, -1, None, {}])
async def test_a_revision_that_is_none_is_refused_by_validation_as_by_a_save(
    http: httpx2.AsyncClient, revision: Any
) -> None:
    body = {"revision": revision, "config": (await read(http))["saved_config"]}
    judged = error_of(await http.post(f"{PATH}/validate", json=body), 400)
    assert judged == error_of(await http.put(PATH, json=body), 400) and "revision" in judged["message"]


async def test_a_new_secret_is_taken_once_and_shown_never(own_http: httpx2.AsyncClient) -> None:
    http = own_http
    document = (await read(http))["saved_config"]
    for revision, key in enumerate((KEY, MASK)):
        document["model"] |= {"vendor": "openai", "api_key": key}
        for method, path, body in (
            ("POST", f"{PATH}/validate", document),
            ("POST", f"{PATH}/test", {"area": "model", "config": document["model"]}),
            ("PUT", PATH, {"revision": revision, "config": document}),
        ):
            answer = await http.request(method, path, json=body)
            assert answer.status_code == 200 and KEY not in answer.text
    assert (await read(http))["secret_states"] == {"model": {"api_key": "configured"}}


FAULTS = [
    ({"schema_version": 2}, "schema_version"),
    ({"model": {"vendor": "acme", "api_key": KEY}}, "model.vendor"),
    ({"model": {"vendor": "anthropic", "api_key": MASK}}, "model.api_key"),
    ({"model": {"vendor": "openai", "api_key": None}}, "model.api_key"),
    ({"model": {"vendor": "openai", "api_key": KEY, "options": {"api_key": KEY}}}, "model.options.api_key"),
    ({"loop_engine": {"provider": "pi", "options": {"approval_mode": "interactive"}}}, "loop_engine.provider"),
    (
        {"loop_engine": {"provider": "builtin", "options": {"approval_mode": "sometimes"}}},
        "loop_engine.options.approval_mode",
    ),
    ({"storage": {"metadata": {"provider": "sqlite", "options": {}}}}, "storage.metadata.provider"),
    (
        {"storage": {"artifacts": {"provider": "local", "options": {"base_path": "x"}}}},
        "storage.artifacts.options.base_path",
    ),
    ({"memory": {"enabled": True, "provider": "none", "options": {}}}, "memory.enabled"),
    ({"sandbox": {"provider": "local", "options": {"timeout_seconds": 300}}}, "sandbox.options.timeout_seconds"),
]


@pytest.mark.parametrize(("change", "path"), FAULTS, ids=[path for _, path in FAULTS])
async def test_validation_and_save_refuse_by_path(http: httpx2.AsyncClient, change: dict[str, Any], path: str) -> None:
    before = await read(http)
    document = before["saved_config"] | change
    judged = error_of(await http.post(f"{PATH}/validate", json=document), 400)
    refused = error_of(await http.put(PATH, json={"revision": 0, "config": document}), 400)
    assert judged == refused
    assert (judged["type"], judged["code"]) == ("invalid_request_error", "invalid_settings")
    assert [each["path"] for each in judged["details"]["errors"]] == [path] and path in judged["message"]
    assert await read(http) == before


@pytest.mark.parametrize(
    ("area", "config", "status"),
    [
        ("storage.artifacts", {"provider": "local", "options": {"base_path": "files"}}, "ok"),
        ("storage.artifacts", {"provider": "none", "options": {}}, "unavailable"),
        ("storage.metadata", {"provider": "postgres", "options": {}}, "ok"),
        ("sandbox", {"provider": "local", "options": {}}, "ok"),
        ("sandbox", {"provider": "docker", "options": {}}, "unavailable"),
        ("loop_engine", {"provider": "builtin", "options": {}}, "ok"),
        ("memory", {"enabled": False, "provider": "none"}, "ok"),
    ],
)
async def test_an_area_is_tried(http: httpx2.AsyncClient, area: str, config: dict[str, Any], status: str) -> None:
    answer = await http.post(f"{PATH}/test", json={"area": area, "config": config})
    assert answer.status_code == 200
    told = answer.json()
    assert (told["area"], told["adapter"], told["status"]) == (area, config["provider"], status)
    assert told["ok"] is (status == "ok") and told["message"]


async def test_areas_are_tried_before_any_key_is_there(own_http: httpx2.AsyncClient) -> None:
    http = own_http
    document = (await read(http))["saved_config"] | {"model": {"vendor": "demo"}}
    assert (await http.put(PATH, json={"revision": 0, "config": document})).status_code == 200
    model = {"area": "model", "config": {"vendor": "openai", "api_key": MASK}}
    assert error_of(await http.post(f"{PATH}/test", json=model), 400)["code"] == "invalid_settings"
    metadata = {"area": "storage.metadata", "config": {"provider": "postgres"}}
    assert (await http.post(f"{PATH}/test", json=metadata)).json()["ok"] is True


async def test_without_a_runner_the_rest_is_told_and_what_runs_fails_its_test(
    fresh_gateway: Gateway, fresh_http: httpx2.AsyncClient
) -> None:
    gateway, http = fresh_gateway, fresh_http
    await gateway.services["runner"].stop()
    found = await read(http)
    assert found["diagnostics"]["metadata"]["health"] == "ok"
    assert found["diagnostics"]["loop_engine"]["health"] == found["diagnostics"]["sandbox"]["health"] == "unreachable"
    for area, provider in (("sandbox", "local"), ("loop_engine", "builtin")):
        told = (await http.post(f"{PATH}/test", json={"area": area, "config": {"provider": provider}})).json()
        assert (told["ok"], told["status"]) == (False, "failed")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"revision": 0},
        {"config": {}},
        {"revision": "0", "config": {}},
        {"revision": -1, "config": {}},
        {"revision": True, "config": {}},
        {"revision": 2**63, "config": {}},
        {"revision": 0, "config": []},
        {"revision": 0, "config": {}, "surprise": 1},
    ],
)
async def test_a_save_needs_a_revision_and_a_document(http: httpx2.AsyncClient, body: dict[str, Any]) -> None:
    assert error_of(await http.put(PATH, json=body), 400)["type"] == "invalid_request_error"
