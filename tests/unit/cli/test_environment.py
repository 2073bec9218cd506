"""Proves which variables reach which process, and which never do."""

from pathlib import Path

import pytest

from cli import config
from cli.catalog import Servers, processes
from cli.data_folder import DataFolder

SERVERS = Servers({"sessions": "s", "vault": "v", "scheduler": "c", "worker": "w"}, "nats://t@127.0.0.1:1")
SECRETS = {
    "ANTHROPIC_API_KEY": "sk-a",
    "OPENAI_API_KEY": "sk-o",
    "AWS_SECRET_ACCESS_KEY": "aws",
    "MANAGED_AGENTS_MODEL_API_KEY": "sk-m",
    "MANAGED_AGENTS_SECRET_KEY": "master",
    "MANAGED_AGENTS_FORMER_SECRET_KEY": "former master",
    "MANAGED_AGENTS_DATABASE_URL": "postgresql://admin:pw@db/x",
}


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, dict[str, str]]:
    for name, value in {**SECRETS, "MANAGED_AGENTS_API_KEY": "ma_1", "MANAGED_AGENTS_LEASE_SECONDS": "3"}.items():
        monkeypatch.setenv(name, value)
    found = processes(DataFolder(tmp_path), SERVERS, host="127.0.0.1", port=3000, runners=2)
    return {process.name: dict(process.environment) for process in found}


def test_secrets_reach_the_vault_only(environments: dict[str, dict[str, str]]) -> None:
    vault = environments.pop("vault")
    assert {name: vault.get(name) for name in SECRETS if not name.endswith("DATABASE_URL")} == {
        name: value for name, value in SECRETS.items() if not name.endswith("DATABASE_URL")
    }
    for environment in environments.values():
        assert not set(SECRETS.values()) & set(environment.values())


def test_the_key_file_of_the_folder_serves_where_no_other_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = DataFolder(tmp_path)

    def named() -> str:
        found = processes(folder, SERVERS, host="127.0.0.1", port=3000, runners=1)
        return next(each for each in found if each.name == "vault").environment["MANAGED_AGENTS_SECRET_KEY_FILE"]

    assert named() == str(folder.secret_key)
    # One that is only named to be replaced does not take its place.
    monkeypatch.setenv("MANAGED_AGENTS_FORMER_SECRET_KEY", "former master")
    assert named() == str(folder.secret_key)
    monkeypatch.setenv("MANAGED_AGENTS_SECRET_KEY_FILE", "/run/secrets/key")
    assert named() == "/run/secrets/key"


def test_the_api_key_reaches_the_gateway_only(environments: dict[str, dict[str, str]]) -> None:
    holders = [name for name, environment in environments.items() if "ma_1" in environment.values()]
    assert holders == ["gateway"]


def test_list_prices_reach_the_sessions_service_wherever_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANAGED_AGENTS_COST_PROFILE", "prices.json")
    found = processes(DataFolder(tmp_path / "data"), SERVERS, host="127.0.0.1", port=3000, runners=1)
    holders = {each.name: each.environment.get("MANAGED_AGENTS_COST_PROFILE") for each in found}
    assert {name: value for name, value in holders.items() if value} == {"sessions": str(tmp_path / "prices.json")}


def test_settings_of_services_reach_all(environments: dict[str, dict[str, str]]) -> None:
    assert all(environment["MANAGED_AGENTS_LEASE_SECONDS"] == "3" for environment in environments.values())


def test_each_process_listens_on_a_socket_of_its_own(environments: dict[str, dict[str, str]]) -> None:
    listens = [environment.get("MANAGED_AGENTS_LISTEN") for environment in environments.values()]
    assert len(set(listens)) == 7 and environments["runner-2"]["MANAGED_AGENTS_LISTEN"].endswith("runner-2.sock")
    assert "MANAGED_AGENTS_LISTEN" not in environments["gateway"]


def test_secrets_do_not_show_when_printed(environments: dict[str, dict[str, str]]) -> None:
    assert "nats://" not in repr(SERVERS)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("demo", "", "")),
        ({"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o"}, ("anthropic", "https://api.anthropic.com", "a")),
        ({"OPENAI_API_KEY": "o"}, ("openai", "https://api.openai.com/v1", "o")),
        (
            {"MANAGED_AGENTS_MODEL_VENDOR": "openai", "MANAGED_AGENTS_MODEL_BASE_URL": "http://127.0.0.1:1/v1"},
            ("openai", "http://127.0.0.1:1/v1", ""),
        ),
    ],
)
def test_the_vendor_is_read_as_the_vault_reads_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[str, str, str]
) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    model = config.model_vendor()
    assert (model["vendor"], model["base_url"], model["api_key"]) == expected
