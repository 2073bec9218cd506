"""However requests, changes of keys, lost announcements and outages of the vault meet, nobody is let in for too long.

The vault is a stand-in with the same promises; time is the test's.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import Unavailable
from managed_agents.vault.v1 import keys_pb2 as pb
from services.gateway.admission import keyring
from services.gateway.admission.credentials import Authenticator
from services.gateway.admission.keyring import PAUSE_SECONDS, STALE_SECONDS, TRUST_SECONDS, KeyRing
from services.gateway.errors import InvalidCredential

SECRETS = {f"key_{letter}": f"ma_{letter}" for letter in "abc"}


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class Vault:
    """Keys, a generation, and whether it can be reached."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.generation = 0
        self.keys: set[str] = set()
        self.changed_at: dict[str, float] = {}
        self.is_away = False
        self.asked = 0
        self.uses: list[list[str]] = []

    def change(self, key_id: str, exists: bool) -> None:
        (self.keys.add if exists else self.keys.discard)(key_id)
        self.generation += 1
        self.changed_at[key_id] = self.time.now

    async def SyncKeys(self, request: Any, **_options: Any) -> pb.SyncKeysResponse:
        self._ask()
        if request.uses:
            self.uses.append([use.key_id for use in request.uses])
        return pb.SyncKeysResponse(generation=self.generation, any_api_key=bool(self.keys))

    async def CheckKey(self, request: Any, **_options: Any) -> pb.CheckKeyResponse:
        self._ask()
        answer = pb.CheckKeyResponse(generation=self.generation)
        for key_id in self.keys:
            if digest(SECRETS[key_id]) == request.sha256:
                found = pb.KeyPrincipal(id=key_id, workspace_id="wrkspc_default", role="admin", sha256=request.sha256)
                answer.principal.CopyFrom(found)
        return answer

    def _ask(self) -> None:
        self.asked += 1
        if self.is_away:
            raise Unavailable("The vault is away.")


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def knock(ring: KeyRing, key_id: str) -> str:
    """`in`, `anonymous`, `refused` or `unknown` for one request with this key."""
    authenticator = Authenticator(None, ring)
    try:
        await authenticator.settle()
        principal = await authenticator.authenticate({"authorization": f"Bearer {SECRETS[key_id]}"})
    except InvalidCredential:
        return "refused"
    except Unavailable:
        return "unknown"
    return "anonymous" if principal.id == "anonymous" else "in"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("knock"), st.sampled_from(list(SECRETS))),
        st.tuples(st.just("make"), st.sampled_from(list(SECRETS)), st.booleans()),
        st.tuples(st.just("delete"), st.sampled_from(list(SECRETS)), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 0.3, 0.5, 1.0, 10.0, 40.0])),
        st.tuples(st.just("vault"), st.booleans()),
        st.tuples(st.just("reconnect")),
    ),
    max_size=40,
)


@given(steps=STEPS)
async def test_nobody_is_let_in_for_too_long_or_kept_out(steps: list[tuple[Any, ...]]) -> None:
    time = Time()
    vault = Vault(time)
    ring = KeyRing(vault, clock=time, wall=time)
    announced_at = away_since = back_at = float("-inf")
    for step in steps:
        # No two things happen at the same moment.
        time.now += 0.001
        match step:
            case ("wait", seconds):
                time.now += seconds
            case ("vault", is_away):
                away_since = time.now if is_away and not vault.is_away else away_since
                back_at = time.now if vault.is_away and not is_away else back_at
                vault.is_away = is_away
            case ("reconnect",):
                ring.doubt()
            case ("make" | "delete" as what, key_id, is_heard):
                vault.change(key_id, what == "make")
                if is_heard:
                    announced_at = time.now
                    ring.forget()
            case ("knock", key_id):
                outcome = await knock(ring, key_id)
                await asyncio.sleep(0)
                _judge(outcome, vault, key_id, time.now, announced_at, away_since, back_at)
    await ring.close()


def _judge(
    outcome: str, vault: Vault, key_id: str, now: float, announced_at: float, away_since: float, back_at: float
) -> None:
    changed_at = max(vault.changed_at.values(), default=float("-inf"))
    truth = "in" if key_id in vault.keys else "refused" if vault.keys else "anonymous"
    if not vault.is_away:
        if outcome != truth:
            # It may still go by what it was told before, but not for a second, and not once it heard of the change.
            is_new = now - changed_at < STALE_SECONDS or now - back_at < PAUSE_SECONDS
            assert (is_new and announced_at < changed_at) or outcome == "unknown"
        if outcome == "unknown":
            # Only as long as nobody waits for the vault again after it failed.
            assert now - away_since < TRUST_SECONDS + 1 or announced_at >= away_since
        return
    if outcome != "unknown":
        # Nothing that was asked before an announcement, and nothing too old.
        assert announced_at < away_since or outcome == truth
        assert now - away_since < TRUST_SECONDS


async def test_one_question_serves_every_key_and_every_request() -> None:
    time = Time()
    vault = Vault(time)
    for key_id in SECRETS:
        vault.change(key_id, True)
    ring = KeyRing(vault, clock=time, wall=time)
    for _ in range(100):
        for key_id in SECRETS:
            assert await knock(ring, key_id) == "in"
    assert vault.asked == 1 + len(SECRETS)
    for _ in range(10):
        time.now += 0.5
        for key_id in SECRETS:
            assert await knock(ring, key_id) == "in"
        await asyncio.sleep(0)
    assert vault.asked <= 1 + len(SECRETS) + 10


async def test_wrong_keys_do_not_ask_the_vault_each_time_and_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "MAX_UNKNOWN", 5)
    time = Time()
    vault = Vault(time)
    vault.change("key_a", True)
    ring = KeyRing(vault, clock=time, wall=time)
    await ring.settle()
    for _ in range(10):
        assert await ring.find(digest("wrong")) is None
    assert vault.asked == 2
    for number in range(50):
        assert await ring.find(digest(f"wrong {number}")) is None
    assert len(ring._unknown) <= 5


async def test_known_keys_and_uses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "MAX_KNOWN", 2)
    monkeypatch.setattr(keyring, "MAX_USES", 2)
    time = Time()
    vault = Vault(time)
    for key_id in SECRETS:
        vault.change(key_id, True)
    ring = KeyRing(vault, clock=time, wall=time)
    for key_id in SECRETS:
        assert await knock(ring, key_id) == "in"
    assert (len(ring._known), len(ring._uses)) == (2, 2)
    await ring.close()
    assert sorted(vault.uses[0]) == ["key_a", "key_b"]


async def test_many_requests_at_once_ask_once() -> None:
    time = Time()
    vault = Vault(time)
    ring = KeyRing(vault, clock=time, wall=time)
    await asyncio.gather(*(ring.settle() for _ in range(50)))
    assert vault.asked == 1


async def test_an_answer_that_was_asked_before_an_announcement_settles_nothing() -> None:
    time = Time()
    vault = Vault(time)
    vault.change("key_a", True)
    ring = KeyRing(vault, clock=time, wall=time)
    assert await knock(ring, "key_a") == "in"
    time.now += STALE_SECONDS + 0.1
    held, sync = asyncio.Event(), vault.SyncKeys

    async def slow(request: Any, **options: Any) -> Any:
        answer = await sync(request, **options)
        await held.wait()
        return answer

    vault.SyncKeys = slow  # type: ignore[method-assign]
    waiting = asyncio.create_task(knock(ring, "key_a"))
    await asyncio.sleep(0.01)
    vault.change("key_a", False)
    vault.change("key_b", True)
    ring.forget()
    held.set()
    assert await waiting == "refused"


async def test_a_vault_that_hangs_holds_up_requests_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "WAIT_SECONDS", 0.01)
    time = Time()
    vault = Vault(time)
    vault.change("key_a", True)
    ring = KeyRing(vault, clock=time, wall=time)
    assert await knock(ring, "key_a") == "in"
    hanging, sync = asyncio.Event(), vault.SyncKeys

    async def hang(request: Any, **options: Any) -> Any:
        await hanging.wait()
        return await sync(request, **options)

    vault.SyncKeys = hang  # type: ignore[method-assign]
    time.now += 2 * STALE_SECONDS
    assert await knock(ring, "key_a") == "in"
    vault.change("key_a", False)
    vault.change("key_b", True)
    hanging.set()
    time.now += PAUSE_SECONDS
    assert await knock(ring, "key_a") == "refused"


async def test_found_keys_are_compared_in_constant_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b))
    time = Time()
    vault = Vault(time)
    vault.change("key_a", True)
    assert await knock(KeyRing(vault, clock=time, wall=time), "key_a") == "in"
    assert compared == [(digest(SECRETS["key_a"]),) * 2]


async def test_the_configured_key_is_let_in_while_nobody_can_be_asked() -> None:
    time = Time()
    vault = Vault(time)
    vault.is_away = True
    authenticator = Authenticator("the-configured-key", KeyRing(vault, clock=time, wall=time))
    assert await authenticator.settle()
    assert (await authenticator.authenticate({"x-api-key": "the-configured-key"})).id == "key_config_env"
    with pytest.raises(Unavailable):
        await authenticator.authenticate({"x-api-key": "another"})
