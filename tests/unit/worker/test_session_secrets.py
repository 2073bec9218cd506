"""A session's secrets in a runner: one object for it and its threads, asked for when needed, kept for seconds."""

import gc

import pytest

from managed_agents.sessions.v1.sessions_pb2 import Session
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.secrets import SecretsRegistry
from services.worker.sandbox.egress import NetworkPolicy, parse_rule
from services.worker.sandbox.placeholders import SecretsUnavailable
from tests.support.injection import Vault, secrets_of, variable


def grant(session_id: str, *vaults: str, root: str = "", workspace: str = "wrkspc_default") -> TurnGrant:
    return TurnGrant(
        workspace_id=workspace, session=Session(id=session_id, vault_ids=vaults), root_session_id=root, epoch=1
    )


def registry(vault: Vault, key: str | None = "internal") -> SecretsRegistry:
    return SecretsRegistry(vault, runner_id="runner_1", shared_secret=key)


async def test_threads_have_the_secrets_of_their_session() -> None:
    vault = Vault(variable("TOKEN", "value"))
    secrets = registry(vault)
    own = secrets.begin_turn(grant("sess_1", "vlt_1"))
    of_thread = secrets.begin_turn(grant("sthr_1", "vlt_1", root="sess_1"))
    assert own is not None and own is of_thread and secrets.of("sess_1") is own
    await own.open("api.example", 443, {"TOKEN"})
    assert [asked.session_id for asked in vault.asked] == ["sess_1"]


async def test_a_session_without_vaults_has_none() -> None:
    vault = Vault(variable())
    secrets = registry(vault)
    assert secrets.begin_turn(grant("sess_1")) is None and secrets.of("sess_1") is None
    assert not vault.listed


def test_secrets_are_forgotten_with_the_last_who_holds_them() -> None:
    secrets = registry(Vault())
    held = secrets.begin_turn(grant("sess_1", "vlt_1"))
    assert secrets.of("sess_1") is held
    del held
    gc.collect()
    assert secrets.of("sess_1") is None


async def test_placeholders_are_the_same_for_all_runners_and_differ_by_session_and_installation() -> None:
    async def text(key: str | None, session_id: str) -> str:
        held = registry(Vault(variable()), key).begin_turn(grant(session_id, "vlt_1"))
        assert held is not None
        return (await held.placeholders())[0].text

    first = await text("internal", "sess_1")
    assert first == await text("internal", "sess_1") and first.replace("_", "").isalnum() and len(first) > 50
    others = [await text("internal", "sess_2"), await text("other", "sess_1"), await text(None, "sess_1")]
    assert len({first, *others, await text(None, "sess_1")}) == 5


async def test_what_was_said_a_moment_ago_is_not_asked_again_until_something_changed() -> None:
    vault = Vault(variable("TOKEN", "value", "api.example"), variable("OTHER", "other", "b.example"))
    secrets = registry(vault)
    held, foreign = secrets.begin_turn(grant("sess_1", "vlt_1")), grant("sess_2", "vlt_1", workspace="wrkspc_2")
    other = secrets.begin_turn(foreign)
    assert held is not None and other is not None
    for _ in range(3):
        await held.placeholders()
        assert await held.open("api.example", 443, {"TOKEN", "OTHER"}) == {"TOKEN": "value"}
    assert vault.listed == 1 and [list(asked.names) for asked in vault.asked] == [["OTHER", "TOKEN"]]
    await held.open("api.example", 8443, {"TOKEN"})
    assert len(vault.asked) == 2
    secrets.forget("wrkspc_2")
    await held.open("api.example", 443, {"TOKEN"})
    assert len(vault.asked) == 2
    secrets.forget("wrkspc_default")
    await held.open("api.example", 443, {"TOKEN"})
    assert len(vault.asked) == 3


async def test_a_vault_that_is_down_leaves_what_is_known_and_opens_nothing() -> None:
    vault = Vault(variable("TOKEN", "value"))
    secrets = secrets_of(vault)
    vault.is_down = True
    with pytest.raises(SecretsUnavailable):
        await secrets.placeholders()
    vault.is_down = False
    known = await secrets.placeholders()
    vault.is_down = True
    secrets.forget()
    assert await secrets.placeholders() == known
    with pytest.raises(SecretsUnavailable):
        await secrets.open("api.example", 443, {"TOKEN"})


async def test_a_policy_that_can_not_be_read_allows_nothing() -> None:
    vault = Vault(variable("TOKEN", "value", "*", "http://x", ""))
    (placeholder,) = await secrets_of(vault).placeholders()
    assert not placeholder.allows("x", 80) and not placeholder.rules and not placeholder.unrestricted


@pytest.mark.parametrize(
    ("policy", "wanted", "reached"),
    [
        ("api.example", "api.example", True),
        ("api.example:443", "api.example", True),
        ("api.example:443", "api.example:80", False),
        ("*.example", "api.example", True),
        ("api.example", "*.example", True),
        ("*.api.example", "*.example", True),
        ("*.example", "example", False),
        ("other.example", "api.example", False),
        ("", "api.example", False),
    ],
)
def test_whether_an_environment_reaches_what_a_credential_is_for(policy: str, wanted: str, reached: bool) -> None:
    rule, rules = parse_rule(wanted), tuple(filter(None, [parse_rule(policy)]))
    assert rule is not None
    assert NetworkPolicy(rules=rules).reaches(rule) is reached
    assert NetworkPolicy(unrestricted=True).reaches(rule)
