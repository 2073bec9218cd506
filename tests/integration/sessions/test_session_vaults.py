"""A session names its vaults once: checked before anything is written, kept in order, shared by threads."""

import orjson
import pytest

from kit.errors import InvalidArgument
from managed_agents.sessions.v1 import sessions_pb2
from services.sessions.domain.session import NewSession
from services.sessions.domain.session_errors import VaultNotFound
from services.sessions.domain.threads import Member
from services.sessions.handlers.sessions import SessionsHandlers
from services.sessions.store.sessions import Sessions
from services.sessions.store.threads import ThreadStore
from tests.integration.sessions.harness import MESSAGE, WORKSPACE, Harness, refusal

pytestmark = pytest.mark.asyncio(loop_scope="package")

VAULTS = ["vlt_b", "vlt_a"]


class Vault:
    """Knows some vaults, and what it was asked."""

    def __init__(self) -> None:
        self.known = set(VAULTS)
        self.asked: list[list[str]] = []

    async def check(self, new: NewSession) -> tuple[NewSession, InvalidArgument | None]:
        self.asked.append(list(new.vault_ids))
        for index, vault_id in enumerate(new.vault_ids):
            if vault_id not in self.known:
                return new, VaultNotFound(f"Vault not found: {vault_id}.", field=f"vault_ids.{index}")
        return new, None


@pytest.fixture
def vault(h: Harness) -> Vault:
    vault = Vault()
    h.sessions = SessionsHandlers(h.operations, check_vaults=vault.check)
    return vault


async def test_vaults_are_stored_in_their_order_and_shown(h: Harness, vault: Vault) -> None:
    made = await h.create(await h.agent(), vault_ids=VAULTS)
    assert list(made.vault_ids) == VAULTS == list((await h.get(made.id)).vault_ids)
    assert vault.asked == [VAULTS]


async def test_a_session_without_vaults_asks_nobody(h: Harness, vault: Vault) -> None:
    for fields in ({}, {"vault_ids": []}, {"vault_ids": None}, {"initial_events": [MESSAGE]}):
        assert not (await h.create(await h.agent(), **fields)).vault_ids
    assert not vault.asked


@pytest.mark.parametrize("events", [[], [MESSAGE]])
async def test_an_unknown_vault_leaves_nothing(h: Harness, vault: Vault, events: list) -> None:
    agent = await h.agent()
    refused = await refusal(h.create(agent, vault_ids=["vlt_a", "vlt_none"], initial_events=events))
    assert (refused.reason, refused.field, refused.code) == ("VAULT_NOT_FOUND", "vault_ids.1", "INVALID_ARGUMENT")
    assert await h.count("sessions") == 0


async def test_a_repeat_is_answered_as_the_first_although_the_vault_is_gone(h: Harness, vault: Vault) -> None:
    request = sessions_pb2.CreateSessionRequest(
        definition_json=orjson.dumps({"agent": await h.agent(), "vault_ids": VAULTS}),
        idempotency={"key": "k", "fingerprint": b"f", "keep_seconds": 60},
    )
    first = await h.call(h.sessions.CreateSession, request)
    vault.known.clear()
    assert await h.call(h.sessions.CreateSession, request) == first


async def test_they_can_not_be_changed(h: Harness, vault: Vault) -> None:
    made = await h.create(await h.agent(), vault_ids=VAULTS)
    refused = await refusal(h.update(made.id, vault_ids=["vlt_a"]))
    assert (refused.reason, refused.field) == ("IMMUTABLE_FIELD", "vault_ids")


async def test_a_thread_has_the_vaults_of_its_session(h: Harness, vault: Vault) -> None:
    agent = await h.agent()
    made = await h.create(agent, vault_ids=VAULTS)
    async with h.database.transaction(WORKSPACE) as tx:
        await ThreadStore(tx).insert(made.id, "sthr_child", Member(agent, 1, "assistant"), h.operations.clock.now())
    async with h.database.read(WORKSPACE) as tx:
        record = await Sessions(tx).get("sthr_child")
    assert record is not None and orjson.loads(record.row.vault_ids) == VAULTS
