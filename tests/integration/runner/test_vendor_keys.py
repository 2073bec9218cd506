"""A vendor that refuses the key: a changed one is tried, and else the log says what to do without showing the key."""

import pytest

from services.worker.runner.models.base import ModelError, ModelErrorKind
from tests.integration.runner.harness import World, of, types
from tests.integration.runner.played import ScriptedModel, say


async def test_a_changed_key_is_tried_before_the_turn_fails(platform: World) -> None:
    session = await platform.session()
    refused = ModelError(ModelErrorKind.AUTHENTICATION, "bad key", status=401)

    async def change_key() -> None:
        platform.vault.answer.revision = 2

    model = ScriptedModel([[change_key, refused], say("with the new key")])
    async with platform.runner(model):
        await platform.say(session, "go")
        log = await platform.until(session)
    assert not of(log, "session.error")
    assert platform.vault.asked == 2


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("key", ["sk-test-key-of-this-workspace", ""])
async def test_a_key_that_is_refused_is_told_with_where_to_set_it(platform: World, status: int, key: str) -> None:
    session = await platform.session()
    platform.vault.answer.vendor = "anthropic"
    platform.vault.answer.api_key = key
    refused = ModelError(ModelErrorKind.AUTHENTICATION, f"wrong key {key[:9]}...{key[-5:]}", status=status)
    model = ScriptedModel([[refused], [refused]])
    async with platform.runner(model):
        await platform.say(session, "go")
        log = await platform.until(session)
    assert len(model.requests) == 1
    (error,) = (event["error"] for event in of(log, "session.error"))
    assert (error["type"], error["retry_status"]) == ("model_request_failed_error", "unknown")
    assert all(word in error["message"] for word in ("anthropic", str(status), "ANTHROPIC_API_KEY", "not tried again"))
    assert ("none is set" in error["message"]) is (not key)
    assert "session.status_rescheduled" not in types(log)
    if key:
        assert not any(part in str(log) for part in (key, key[:9], key[-5:]))
