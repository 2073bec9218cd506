"""What a runner keeps is bounded and told; model access is shared, refreshed, and closed when nobody uses it."""

import asyncio
import threading

import orjson
import pytest

from kit.errors import Unavailable
from managed_agents.vault.v1.vault_pb2 import GetModelAccessResponse
from services.worker.runner.loop.cache import ConversationCache
from services.worker.runner.loop.context import Conversation
from services.worker.runner.models import access as access_module
from services.worker.runner.models.access import ModelAccessCache
from services.worker.runner.models.base import ModelError, ModelProvider


def conversation(seq: int, characters: int) -> Conversation:
    made = Conversation()
    body = orjson.dumps({"content": [{"type": "text", "text": "x" * characters}]})
    made.apply_stored(seq, "e", "user.message", body)
    return made


def test_the_longest_unused_conversation_goes_first_and_the_service_hears_of_it() -> None:
    cache = ConversationCache(25_000)
    for number in range(3):
        cache.put(f"s{number}", conversation(number + 1, 10_000))
    assert cache.take("s0") is None
    assert cache.take_changes() == {"s0": 0, "s1": 2, "s2": 3}
    assert cache.take_changes() == {}
    assert cache.everything() == {"s1": 2, "s2": 3}
    assert cache.take("s1").known_seq == 2
    assert cache.take("s2").known_seq == 3 and cache.size_bytes == 0


def test_a_conversation_larger_than_the_cache_is_not_kept() -> None:
    cache = ConversationCache(1_000)
    cache.put("s", conversation(1, 5_000))
    assert cache.take("s") is None and cache.size_bytes == 0
    assert cache.take_changes() == {"s": 0}


class Vault:
    def __init__(self) -> None:
        self.revision, self.asked, self.away = 1, 0, False

    async def __call__(self, workspace_id: str) -> GetModelAccessResponse:
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("away")
        return GetModelAccessResponse(vendor="demo", default_model="the-default", revision=self.revision)


class Provider:
    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


def cached(vault: Vault) -> tuple[ModelAccessCache, list[Provider]]:
    made: list[Provider] = []

    def create(_access: object) -> ModelProvider:
        made.append(Provider())
        return made[-1]  # type: ignore[return-value]

    return ModelAccessCache(vault, create), made


async def test_many_turns_ask_vault_once() -> None:
    vault = Vault()
    access, made = cached(vault)

    async def turn() -> str:
        async with access.use("w") as model:
            return model.resolve("default") + model.resolve("named")

    assert set(await asyncio.gather(*(turn() for _ in range(20)))) == {"the-defaultnamed"}
    assert vault.asked == 1 and len(made) == 1
    await access.close()
    assert made[0].closed


async def test_a_vendor_is_loaded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop renews leases: it must run while the SDK of a vendor is imported."""
    loaded = threading.Event()
    monkeypatch.setattr(access_module.registry, "load", lambda vendor: loaded.wait(20) or pytest.fail("the loop stood"))
    access, _ = cached(Vault())
    using = asyncio.create_task(access.refresh("w", 0))
    asyncio.get_running_loop().call_later(0.05, loaded.set)
    assert await using
    await access.close()


async def test_a_new_revision_gets_a_new_provider_and_the_old_one_ends_with_its_last_request() -> None:
    vault = Vault()
    access, made = cached(vault)
    async with access.use("w") as old:
        vault.revision = 2
        assert await access.refresh("w", old.access.revision)
        async with access.use("w") as new:
            assert new.access.revision == 2 and not made[0].closed
    await access.close()
    assert [provider.closed for provider in made] == [True, True]


@pytest.mark.parametrize(("saved_in", "is_asked"), [("w", True), (None, True), ("other", False)])
async def test_after_a_save_vault_is_asked_before_the_next_use(saved_in: str | None, is_asked: bool) -> None:
    vault = Vault()
    access, _ = cached(vault)
    async with access.use("w"):
        pass
    vault.revision = 2
    access.forget(saved_in)
    for _ in range(2):
        async with access.use("w") as model:
            assert model.access.revision == (2 if is_asked else 1)
    assert vault.asked == (2 if is_asked else 1)
    await access.close()


async def test_an_answer_that_was_asked_for_before_a_save_serves_once() -> None:
    vault = Vault()
    access, _ = cached(vault)

    async def turn() -> int:
        async with access.use("w") as model:
            return model.access.revision

    asking = asyncio.create_task(turn())
    await asyncio.sleep(0)
    access.forget("w")
    vault.revision = 2
    await asking
    assert await turn() == 2 and vault.asked == 2
    assert await turn() == 2 and vault.asked == 2
    await access.close()


async def test_vault_may_be_away_once_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    vault = Vault()
    access, _ = cached(vault)
    vault.away = True
    with pytest.raises(ModelError) as failed:
        async with access.use("w"):
            pass
    assert failed.value.retryable
    vault.away = False
    async with access.use("w"):
        pass
    vault.away = True
    monkeypatch.setattr(access_module, "REFRESH_SECONDS", 0.0)
    async with access.use("w") as model:
        assert model.access.revision == 1
    await access.close()
