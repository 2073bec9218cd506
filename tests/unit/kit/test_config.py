"""Settings come from the environment alone; a faulty one is told whole; secrets stay wrapped."""

from pathlib import Path

import pytest

from kit import failpoints
from kit.config import BaseServiceSettings, ConfigError, Field, SecretStr, load


class Settings(BaseServiceSettings):
    seconds: float
    other: int = Field(default=1, ge=1)
    vendor_key: SecretStr | None = Field(default=None, validation_alias="VENDOR_API_KEY")


def test_the_environment_is_read(monkeypatch, tmp_path):
    (tmp_path / "token").write_text("  abc\n")
    monkeypatch.setenv("MANAGED_AGENTS_SECONDS", "2.5")
    monkeypatch.setenv("MANAGED_AGENTS_DATABASE_URL", "postgresql://u:pw@h/d")
    monkeypatch.setenv("MANAGED_AGENTS_NATS_URL", "")
    monkeypatch.setenv("MANAGED_AGENTS_INTERNAL_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("VENDOR_API_KEY", "vendor")
    settings = load(Settings)
    assert settings.seconds == 2.5
    assert settings.data_dir == Path(".managed-agents")
    assert settings.database_dsn() == "postgresql://u:pw@h/d"
    assert settings.internal_token() == "abc"
    assert settings.vendor_key.get_secret_value() == "vendor"
    assert "pw" not in repr(settings)
    assert "vendor'" not in repr(settings)
    # An empty variable is an unset one.
    with pytest.raises(ConfigError, match="MANAGED_AGENTS_NATS_URL"):
        settings.nats_server()


def test_all_faults_are_told_at_once(monkeypatch):
    monkeypatch.setenv("MANAGED_AGENTS_OTHER", "0")
    monkeypatch.setenv("MANAGED_AGENTS_GRACE_SECONDS", "soon")
    with pytest.raises(ConfigError) as caught:
        load(Settings)
    for name in ("MANAGED_AGENTS_SECONDS", "MANAGED_AGENTS_OTHER", "MANAGED_AGENTS_GRACE_SECONDS"):
        assert name in str(caught.value)


def test_a_token_file_that_is_missing_or_empty_is_told(tmp_path):
    assert Settings(seconds=1).internal_token() is None
    (tmp_path / "empty").write_text("\n")
    for name in ("missing", "empty"):
        with pytest.raises(ConfigError, match="INTERNAL_TOKEN_FILE"):
            Settings(seconds=1, internal_token_file=tmp_path / name).internal_token()


async def test_a_failpoint_does_nothing_unless_it_is_armed():
    await failpoints.point("a")
    try:
        failpoints.arm("a=raise@2, b=raise")
        await failpoints.point("a")
        with pytest.raises(failpoints.FailpointHit, match="a"):
            await failpoints.point("a")
        await failpoints.point("a")
        await failpoints.point("c")
        with pytest.raises(failpoints.FailpointHit):
            await failpoints.point("b")
    finally:
        failpoints.arm("")
    await failpoints.point("b")


@pytest.mark.parametrize("text", ["a", "a=explode", "a=raise@x", "=kill@"])
def test_a_failpoint_that_is_not_understood_is_refused(text):
    with pytest.raises(ValueError, match="failpoint"):
        failpoints.parse(text)
