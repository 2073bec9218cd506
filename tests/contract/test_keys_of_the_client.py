"""The published client with keys: it is let in, refused and throttled in its own words, in both of its generations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx2
import pytest

from tests.support.platform import Platform, running_platform

KEYS = "/v1/api-keys"
LIMITS = {"MANAGED_AGENTS_INBOUND_RATE_LIMIT_READ": "40"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform of its own, since a key turns authentication on."""
    with running_platform(Path(tmp_path_factory.mktemp("guarded")) / "data", environment=LIMITS) as running:
        yield running


@pytest.fixture(scope="module")
def admin(guarded: Platform) -> str:
    """The secret of the first key."""
    made = httpx2.post(f"{guarded.url}{KEYS}", json={"name": "admin"})
    assert made.status_code == 200, made.text
    return made.json()["secret_key"]


def make(platform: Platform, admin: str, **fields: str) -> str:
    made = httpx2.post(
        f"{platform.url}{KEYS}", json={"name": "k"} | fields, headers={"authorization": f"Bearer {admin}"}
    )
    assert made.status_code == 200, made.text
    return made.json()["secret_key"]


def client(platform: Platform, key: str, **headers: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        api_key=key,
        base_url=platform.url,
        max_retries=0,
        timeout=30,
        default_headers=headers,
        _strict_response_validation=True,
    )


def test_a_key_lets_in_and_a_wrong_one_is_an_authentication_error(guarded: Platform, admin: str) -> None:
    with client(guarded, admin) as published:
        assert published.beta.agents.list().data == []
    with client(guarded, "ma_wrong") as published, pytest.raises(anthropic.AuthenticationError) as refusal:
        published.beta.agents.list()
    assert refusal.value.request_id and refusal.value.type == "authentication_error"


def test_a_reader_reads_and_a_write_is_a_permission_error(guarded: Platform, admin: str) -> None:
    with client(guarded, make(guarded, admin, role="read_only")) as published:
        published.beta.sessions.list()
        with pytest.raises(anthropic.PermissionDeniedError, match="role member"):
            published.beta.agents.create(name="a", model="default", system="s")


def test_a_workspace_sees_its_own(guarded: Platform, admin: str) -> None:
    other = make(guarded, admin, workspace_id="wrkspc_b")
    with client(guarded, admin) as ours, client(guarded, other) as theirs:
        agent = ours.beta.agents.create(name="a", model="default", system="s")
        assert ours.beta.agents.retrieve(agent.id).id == agent.id
        with pytest.raises(anthropic.NotFoundError) as refusal:
            theirs.beta.agents.retrieve(agent.id)
        assert refusal.value.type == "not_found_error"
        assert theirs.beta.agents.list().data == []
    named = {"anthropic-workspace-id": "wrkspc_b"}
    with client(guarded, other, **named) as theirs:
        theirs.beta.agents.list()
    with client(guarded, admin, **named) as ours, pytest.raises(anthropic.PermissionDeniedError):
        ours.beta.agents.list()


def test_the_earlier_generation_sends_its_key_in_the_other_header(guarded: Platform, admin: str) -> None:
    headers = {
        "x-api-key": admin,
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "managed-agents-2026-04-01",
    }
    assert httpx2.get(f"{guarded.url}/v1/agents", headers=headers).status_code == 200


def test_a_spent_budget_is_a_rate_limit_error_and_spends_nobody_elses(guarded: Platform, admin: str) -> None:
    with client(guarded, make(guarded, admin, role="member")) as published:
        with pytest.raises(anthropic.RateLimitError) as refusal:
            for _ in range(41):
                published.beta.agents.list()
        assert refusal.value.type == "rate_limit_error"
        assert 1 <= int(refusal.value.response.headers["retry-after"]) <= 60
    with client(guarded, make(guarded, admin, role="read_only")) as published:
        published.beta.agents.list()
