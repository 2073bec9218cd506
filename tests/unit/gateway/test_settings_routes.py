"""Settings are for whoever holds the key, or sits at the machine while there is none; runners hear of a save."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from kit.errors import PermissionDenied, Unavailable
from managed_agents.vault.v1 import vault_pb2
from services.gateway.admission.principal import ANONYMOUS, CONFIGURED, Principal
from services.gateway.admission.roles import require_role
from services.gateway.app import create_app
from services.gateway.routes.settings import PATH, SettingsRoutes
from services.vault.domain.errors import SettingsRevisionConflict
from tests.unit.gateway.support import Stub, clients, settings

DOCUMENT = b'{"model":{"api_key":"********"}}'
STORED = vault_pb2.GetSettingsResponse(
    revision=4,
    effective_revision=4,
    document_json=DOCUMENT,
    saved_document_json=DOCUMENT,
    secret_states_json=b"{}",
    activation_status="active",
    activation_errors_json=b"[]",
    adapters_json=b"{}",
)
SAVED = vault_pb2.SaveSettingsResponse(settings=STORED)
SAVE = {"revision": 3, "config": {"schema_version": 1}}


class Bus:
    """Keeps what was sent over it, and when that was taken."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def publish(self, subject: str, payload: bytes) -> bool:
        self.sent.append(subject)
        return True

    async def flush(self) -> bool:
        self.sent.append("flushed")
        return True


def client(
    bus: Bus, *, address: str = "127.0.0.1", api_key: str | None = None, saved: Any = SAVED
) -> httpx2.AsyncClient:
    vault = Stub(GetSettings=STORED, SaveSettings=saved)
    runner = Stub(DescribeRunner=Unavailable("The runner is away."))
    operations = SettingsRoutes(bus).operations()  # type: ignore[arg-type]
    listening = settings(api_key=api_key, host="0.0.0.0")
    app = create_app(listening, clients(settings=vault, runner=runner), operations)
    transport = httpx2.ASGITransport(app=app, client=(address, 5000))
    return httpx2.AsyncClient(transport=transport, base_url="http://platform.test")


def require_admin(principal: Principal, client: Any) -> None:
    require_role(principal, "admin", workers=False, path={}, client=client)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_without_a_key_this_machine_may(address: str) -> None:
    require_admin(ANONYMOUS, (address, 5000))


@pytest.mark.parametrize("peer", [("10.0.0.7", 5000), ("::ffff:10.0.0.7", 1), ("fe80::1", 1), ("", 0), None])
def test_without_a_key_nobody_else_may(peer: Any) -> None:
    with pytest.raises(PermissionDenied, match="MANAGED_AGENTS_API_KEY"):
        require_admin(ANONYMOUS, peer)


def test_with_the_key_anybody_may() -> None:
    require_admin(CONFIGURED, ("10.0.0.7", 5000))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", PATH, None),
        ("PUT", PATH, SAVE),
        ("POST", f"{PATH}/validate", {}),
        ("POST", f"{PATH}/test", {"area": "model", "config": {}}),
    ],
)
async def test_no_route_is_open_to_others(method: str, path: str, body: Any) -> None:
    bus = Bus()
    async with client(bus, address="10.0.0.7") as http:
        assert (await http.request(method, path, json=body)).status_code == 403
    async with client(bus, address="127.0.0.1", api_key="the-only-key") as http:
        assert (await http.request(method, path, json=body)).status_code == 401
    assert bus.sent == []


async def test_runners_are_told_of_a_save_before_it_is_answered() -> None:
    bus = Bus()
    async with client(bus, address="10.0.0.7", api_key="the-only-key") as http:
        answer = await http.put(PATH, json=SAVE, headers={"authorization": "Bearer the-only-key"})
    assert answer.status_code == 200 and answer.json()["revision"] == 4
    assert bus.sent == ["settings.saved.wrkspc_default", "flushed"]


async def test_nobody_is_told_of_a_save_that_was_refused() -> None:
    bus = Bus()
    async with client(bus, saved=SettingsRevisionConflict("The settings are no longer at revision 3.")) as http:
        assert (await http.put(PATH, json=SAVE)).status_code == 409
        assert (await http.get(PATH)).json()["diagnostics"]["sandbox"]["health"] == "unreachable"
    assert bus.sent == []
