"""Secrets are planted wherever one can enter, real work and real failures happen, and then everything is searched.

What holds a secret by right is named below with its reason; a place that no longer holds what it is allowed to fails
the test as well, so the list can't outgrow the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kit.embedded.nats import EmbeddedNats
from kit.testing import await_until
from services.worker.sandbox.inspecting import host_roots
from tests.support.api import Api, Reader
from tests.support.canaries import Allowed, Bus, Search, collector, rows_of, secrets_in_files
from tests.support.chat import called, environment, said
from tests.support.injection import Hosts, hosts
from tests.support.mcp_server import Doorman, mcp_server
from tests.support.oauth import AuthorizationServer, authorization_server
from tests.support.platform import Platform, running_platform
from tests.support.rows import database_of
from tests.support.vendor import Answer, Vendor, vendor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HOST = "127.0.0.2"
# With characters that every encoding writes in its own way.
CANARIES = {
    name: f"canary+{name}/{number:03d}=7Qx{number * 7919}z"
    for number, name in enumerate(
        (
            "model-key",
            "saved-model-key",
            "api-key",
            "wrong-key",
            "variable",
            "variable-rotated",
            "variable-for-all",
            "bearer",
            "access-token",
            "refresh-token",
            "client-secret",
            "repository-token",
            "refused-value",
            "bucket-secret",
        ),
        start=101,
    )
}
OWN_FILES = {"master-key": "secret.key", "internal-token": "internal.token", "nats-token": "nats/token"}
ALLOWED = (
    Allowed("master-key", "file secret.key", "the key that opens everything else: this file is where it lives, 0600"),
    Allowed("internal-token", "file internal.token", "services read it from this file, 0600"),
    Allowed("nats-token", "file nats/", "the server reads it from its configuration, 0600, as clients from its file"),
    Allowed("nats-token", "environment of", "a service is told the address of its bus, token included, by its own"),
    Allowed("model-key", "environment of", "the operator put it into the environment of the command and of the vault"),
    Allowed("api-key", "environment of", "the operator put it into the environment of the command and of the gateway"),
)
LOOK = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; cat /run/trust/* | wc -c; ls -la / /tmp ~ /root 2>&1"


@dataclass
class Client:
    """A client of the API that keeps every answer."""

    http: httpx2.AsyncClient
    answers: list[str] = field(default_factory=list)

    async def call(self, method: str, path: str, body: Any = None, *, expect: int = 2, **headers: str) -> Any:
        """One request; its answer is kept, headers included. `expect` is a status or its first digit."""
        answer = await self.http.request(method, path, json=body, headers=headers)
        self.answers.append(f"{method} {path} {answer.status_code} {answer.headers!r} {answer.text}")
        assert expect in (answer.status_code, answer.status_code // 100), self.answers[-1]
        return json.loads(answer.text)

    async def issued(self, path: str, body: Any) -> dict[str, Any]:
        """A key that is shown this once: the answer that shows it is not kept."""
        answer = await self.http.post(path, json=body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()


@dataclass
class World:
    """All that talks to the platform in this test."""

    platform: Platform
    client: Client
    model: Vendor
    web: Hosts
    mcp: Doorman
    oauth: AuthorizationServer
    search: Search
    bus: Bus
    traces: list[bytes]
    steps: list[Answer | Callable[[dict[str, Any]], Answer]]
    readers: dict[str, Reader] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A platform with everything around it."""
    steps: list[Answer | Callable[[dict[str, Any]], Answer]] = []

    def plan(body: dict[str, Any]) -> Answer:
        step = steps.pop(0) if steps else said("done")
        return step(body) if callable(step) else step

    async with vendor(said("done")) as model, hosts(HOST) as web, mcp_server() as mcp, authorization_server() as oauth:
        model.plan = plan
        mcp.tokens = {CANARIES["bearer"]}
        mcp.server.tool(name="reveal")(lambda: f"your token is {CANARIES['bearer']}")
        roots = tmp_path / "roots.pem"
        roots.write_bytes(host_roots() + b"\n" + web.authority.certificate_pem)
        with collector() as (endpoint, traces):
            variables = {
                **environment(model, CANARIES["model-key"]),
                "MANAGED_AGENTS_API_KEY": CANARIES["api-key"],
                "MANAGED_AGENTS_ALLOWED_PRIVATE_HOSTS": f"{HOST},127.0.0.1",
                "MANAGED_AGENTS_LOG_LEVEL": "debug",
                "SSL_CERT_FILE": str(roots),
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            }
            started = running_platform(tmp_path / "data", environment=variables)
            platform = await asyncio.to_thread(started.__enter__)
            bus = Bus()
            try:
                await bus.listen(EmbeddedNats(platform.data_dir / "nats").address())
                made = secrets_in_files(platform.data_dir, OWN_FILES)
                search = Search({**CANARIES, **made}, ALLOWED)
                headers = {"authorization": f"Bearer {CANARIES['api-key']}"}
                async with httpx2.AsyncClient(
                    base_url=platform.url, headers=headers, timeout=30, trust_env=False
                ) as http:
                    yield World(platform, Client(http), model, web, mcp, oauth, search, bus, traces, steps)
            finally:
                await bus.close()
                await asyncio.to_thread(started.__exit__, None, None, None)


async def test_planted_secrets_are_found_nowhere(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        await _keys(all_of_it)
        vault = await _vault(all_of_it)
        session = await _work(all_of_it, vault)
        await _failures(all_of_it, vault, session)
        await _look_everywhere(all_of_it, session)
        assert not all_of_it.search.found, "\n".join(map(str, all_of_it.search.found))
        # Nothing would be found where nothing was planted, or nothing was looked at.
        assert any("client-secret" in str(renewal) for renewal in all_of_it.oauth.renewals)
        for place in ("sleep 300", "services.vault", "table sessions.events", "trace", "message 9 of the bus"):
            assert any(place in each for each in all_of_it.search.places), place
        assert {each.secret for each in ALLOWED} == {each.secret for each in all_of_it.search.used}


async def _keys(here: World) -> None:
    client = here.client
    key = await client.issued("/v1/api-keys", {"name": "issued"})
    here.search.canaries["issued-key"] = key["secret_key"]
    await client.call("GET", "/v1/api-keys")
    environment = await client.call("POST", "/v1/environments", {"name": "hosted", "config": {"type": "self_hosted"}})
    worker = await client.issued(f"/v1/environments/{environment['id']}/worker-keys", {"name": "worker"})
    here.search.canaries["worker-key"] = worker["secret_key"]
    for refused in (CANARIES["wrong-key"], worker["secret_key"]):
        await client.call("GET", "/v1/agents", expect=4, authorization=f"Bearer {refused}")
    await client.call("DELETE", f"/v1/api-keys/{key['id']}")
    await client.call("GET", "/v1/agents", expect=401, authorization=f"Bearer {key['secret_key']}")


async def _vault(here: World) -> str:
    client, vault = here.client, (await here.client.call("POST", "/v1/vaults", {"display_name": "all"}))["id"]
    path = f"/v1/vaults/{vault}/credentials"
    limited = {"type": "limited", "allowed_hosts": [HOST]}
    auths = [
        {"type": "environment_variable", "secret_name": "TOKEN", "secret_value": "variable", "networking": limited},
        {
            "type": "environment_variable",
            "secret_name": "ANY_TOKEN",
            "secret_value": "variable-for-all",
            "networking": {"type": "unrestricted"},
        },
        {"type": "static_bearer", "mcp_server_url": here.mcp.url, "token": "bearer"},
        {
            "type": "mcp_oauth",
            "mcp_server_url": here.oauth.mcp_url,
            "access_token": "access-token",
            "refresh": {
                "refresh_token": "refresh-token",
                "client_id": "client",
                "token_endpoint": here.oauth.token_endpoint,
                "token_endpoint_auth": {"type": "client_secret_post", "client_secret": "client-secret"},
            },
        },
    ]
    made = [await client.call("POST", path, {"auth": _planted(auth)}) for auth in auths]
    known = [CANARIES[name] for name in ("access-token", "refresh-token", "client-secret")]
    here.oauth.refuse = (400, json.dumps({"error": "invalid_grant", "error_description": " ".join(known)}))
    await client.call("POST", f"{path}/{made[3]['id']}/mcp_oauth_validate", {})
    for wrong in (
        {"type": "environment_variable", "secret_name": "no name", "secret_value": CANARIES["refused-value"]},
        {"type": "nonsense", "secret_value": CANARIES["refused-value"]},
        {"type": "static_bearer", "mcp_server_url": "not a url", "token": CANARIES["refused-value"]},
    ):
        await client.call("POST", path, {"auth": wrong}, expect=400)
    local = f"/v1/credential-vaults/{vault}/credentials/{made[0]['id']}/rotate"
    await client.call("POST", local, {"value": CANARIES["variable-rotated"]})
    for listed in (path, f"/v1/vaults/{vault}/audit", f"{path}/{made[0]['id']}/audit", f"{path}/{made[3]['id']}"):
        await client.call("GET", listed)
    return vault


def _planted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _planted(item) for key, item in value.items()}
    return CANARIES.get(value, value) if isinstance(value, str) else value


async def _work(here: World, vault: str) -> str:
    """A session that uses every kind of credential and looks around."""
    client = here.client
    network = {"type": "limited", "allowed_hosts": [HOST], "allow_mcp_servers": True}
    environment = await client.call(
        "POST", "/v1/environments", {"name": "web", "config": {"type": "cloud", "networking": network}}
    )
    allow = {"permission_policy": {"type": "always_allow"}}
    agent = {
        "name": "worker",
        "model": "default",
        "system": "Work.",
        "tools": [
            {"type": "agent_toolset_20260401"},
            {"type": "mcp_toolset", "mcp_server_name": "tested", "default_config": allow},
            {"type": "mcp_toolset", "mcp_server_name": "refused", "default_config": allow},
        ],
        "mcp_servers": [
            {"type": "url", "name": "tested", "url": here.mcp.url},
            {"type": "url", "name": "refused", "url": here.oauth.mcp_url},
        ],
    }
    saved = (await client.call("POST", "/v1/agents", agent))["id"]
    body = {"agent": saved, "environment_id": environment["id"], "vault_ids": [vault]}
    session = (await client.call("POST", "/v1/sessions", body))["id"]
    plain, tls = f"http://{HOST}:{here.web.plain_port}", f"https://{HOST}:{here.web.tls_port}"
    text = "-H 'content-type: text/plain' -d"
    here.steps += [
        called("bash", command=LOOK),
        called("bash", command=f'curl -sS -H "Authorization: Bearer $TOKEN" {text} "$TOKEN $ANY_TOKEN" {tls}/echo'),
        called("bash", command=f'curl -sS -u "me:$TOKEN" {plain}/echo; curl -sS "{plain}/?key=$TOKEN"'),
        called("tested__reveal"),
        called("bash", command="python3 -c 'import os; raise RuntimeError(dict(os.environ))'; kill -9 $$"),
        # It goes on in the background while processes are looked at.
        called("bash", command="sleep 300 & env > kept.txt; echo started"),
        said("done"),
    ]
    await _say(here, session, "Work.")
    assert here.web.seen[0].headers["Authorization"] == f"Bearer {CANARIES['variable-rotated']}"
    assert here.web.seen[0].body.decode() == f"{CANARIES['variable-rotated']} {CANARIES['variable-for-all']}"
    log = await _log(here, session)
    for told in ("vault_placeholder_", "your token is [secret", "mcp_authentication_failed_error", "may not stand in"):
        assert told in log, log
    return session


async def _failures(here: World, vault: str, session: str) -> None:
    client = here.client
    # A vendor repeats what it was sent.
    here.steps[:] = [_refusal("model-key")] * 3
    await _say(here, session, "Fail at the vendor.")
    await _save_model_key(here)
    here.steps[:] = [called("bash", command="false"), said("done")]
    await _say(here, session, "Go on.")
    assert here.model.headers[-1]["authorization"] == f"Bearer {CANARIES['saved-model-key']}"
    here.steps[:] = [_refusal("saved-model-key")] * 3
    await _say(here, session, "Fail once more.")
    repository = {
        "type": "github_repository",
        "url": f"http://{HOST}:{here.web.plain_port}/forbidden/repo.git",
        "authorization_token": CANARIES["repository-token"],
    }
    await client.call("POST", f"/v1/sessions/{session}/resources", repository)
    here.steps[:] = [called("bash", command="true"), said("done")]
    await _say(here, session, "Look at the repository.")
    assert "repository_forbidden_error" in await _log(here, session)
    await client.call("GET", f"/v1/sessions/{session}/resources")
    await client.call("GET", f"/v1/x/mcp/status?session_id={session}")
    await _fail_at_the_bucket(here)
    await client.call("POST", f"/v1/vaults/{vault}/archive", {})
    for path in ("/v1/sessions", "/v1/agents", "/v1/vaults?include_archived=true", f"/v1/sessions/{session}"):
        await client.call("GET", path)


def _refusal(name: str) -> Answer:
    told = json.dumps({"error": {"message": f"Incorrect API key provided: {CANARIES[name]}"}}).encode()
    return Answer(401, [told], {"content-type": "application/json"})


async def _save_model_key(here: World) -> None:
    """Settings with a key of their own, which every request to the model carries from then on."""
    path = "/v1/x/settings"
    found = await here.client.call("GET", path)
    document = found["saved_config"]
    document["model"]["api_key"] = CANARIES["saved-model-key"]
    await here.client.call("POST", f"{path}/validate", document)
    await here.client.call("PUT", path, {"revision": found["revision"], "config": document})
    await here.client.call("PUT", path, {"revision": found["revision"], "config": document}, expect=4)
    await here.client.call("GET", path)


async def _fail_at_the_bucket(here: World) -> None:
    """Bytes are sent to a bucket that refuses them."""
    path, client = "/v1/x/settings", here.client
    found = await client.call("GET", path)
    options = {
        "bucket": "files",
        "endpoint": f"http://{HOST}:{here.web.plain_port}/forbidden",
        "access_key_id": "AKID",
        "secret_access_key": CANARIES["bucket-secret"],
    }
    document = found["saved_config"] | {"storage": {"artifacts": {"provider": "s3", "options": options}}}
    saved = await client.call("PUT", path, {"revision": found["revision"], "config": document})
    await client.call("POST", "/v1/files", {"name": "a.txt", "content": "kept nowhere"}, expect=5)
    local = saved["saved_config"] | {"storage": {"artifacts": {"provider": "local", "options": {}}}}
    await client.call("PUT", path, {"revision": saved["revision"], "config": local})


async def _say(here: World, session: str, text: str) -> None:
    events = [{"type": "user.message", "content": text}]
    await here.client.call("POST", f"/v1/sessions/{session}/events", {"events": events})

    reader = here.readers.setdefault(session, Reader(Api(here.client.http), session))
    assert await reader.follow(lambda event: event["type"] == "session.status_idle")


async def _log(here: World, session: str) -> str:
    return json.dumps(await here.client.call("GET", f"/v1/sessions/{session}/events?limit=1000"))


async def _look_everywhere(here: World, session: str) -> None:
    search, platform = here.search, here.platform
    await _log(here, session)
    search.look("event stream", json.dumps([reader.events for reader in here.readers.values()]))
    for number, answer in enumerate(here.client.answers):
        search.look(f"answer {number}: {answer[:60]}", answer)
    # What the model was told, all but the key that it is asked with.
    search.look("requests to the model", json.dumps(here.model.requests))
    search.look("logs", platform.logs())
    search.look("output", platform.output())
    search.look_at_processes()
    for number, message in enumerate(here.bus.heard):
        search.look(f"message {number} of the bus: {message[:60]!r}", message)
    await await_until(lambda: len(here.traces) > 3, timeout=30)
    for body in here.traces:
        search.look("trace", body)
    with database_of(platform) as connection:
        for table, rows in rows_of(connection).items():
            search.look(table, rows)
        connection.execute("CHECKPOINT")
    search.look_at_files(platform.data_dir)
    for name in OWN_FILES.values():
        assert (platform.data_dir / name).stat().st_mode & 0o077 == 0
