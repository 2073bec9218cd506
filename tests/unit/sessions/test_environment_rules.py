"""What an environment may declare, in which spelling, and what it resolves to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import DomainError, InvalidArgument
from services.sessions.domain.environment import (
    DEFAULT_CONFIG,
    DEFAULT_ENVIRONMENT_ID,
    FIELDS,
    Environment,
    EnvironmentDefinition,
    content_of,
    merge_environment,
    validate_environment,
)
from services.sessions.domain.errors import EnvironmentArchived, InvalidEnvironmentConfig, UnsupportedHostingType
from services.sessions.domain.session_errors import InvalidRequest, UnknownField, UnsupportedCapability

MOMENT = datetime(2026, 11, 29, tzinfo=UTC)
OPEN = {"type": "unrestricted"}
CLOSED = {"type": "limited", "allow_mcp_servers": False, "allow_package_managers": False, "allowed_hosts": []}
LIMITED_FLAT = {
    "type": "limited",
    "allow_mcp_server_network_access": True,
    "allow_package_manager_network_access": False,
    "allowed_hosts": ["api.example.com"],
}
LIMITED = {
    "type": "limited",
    "allow_mcp_servers": True,
    "allow_package_managers": False,
    "allowed_hosts": ["api.example.com"],
}


def kept(content: EnvironmentDefinition, environment_id: str = "env_1") -> Environment:
    return Environment(
        environment_id,
        content.name,
        content.description,
        orjson.dumps(content.metadata).decode(),
        content.config,
        content.scope,
        MOMENT,
        MOMENT,
        None,
    )


def made(**body: Any) -> Environment:
    return kept(validate_environment({"name": "place"} | body))


def updated(stored: Environment, **body: Any) -> Environment:
    return kept(merge_environment(stored, body), stored.id)


@pytest.mark.parametrize(
    ("body", "hosting_type", "provider", "protocol"),
    [
        ({}, "local", "local", None),
        ({"config": {}}, "local", "local", None),
        ({"hosting_type": "local"}, "local", "local", None),
        ({"hosting_type": "docker"}, "docker", "docker", None),
        ({"hosting_type": "kubernetes"}, "kubernetes", "kubernetes", None),
        ({"hosting_type": "self_hosted"}, "self_hosted", "self_hosted", "tool"),
        ({"hosting_type": "self_hosted", "worker_protocol": "session"}, "self_hosted", "self_hosted", "session"),
        ({"sandbox_provider": "docker"}, "docker", "docker", None),
        ({"sandbox_provider": "made-up"}, "made-up", "made-up", None),
        ({"hosting_type": "local", "sandbox_provider": "docker"}, "local", "docker", None),
        ({"config": {"type": "cloud"}}, "cloud", "workspace", None),
        ({"config": {"type": "self_hosted"}}, "self_hosted", "self_hosted", "session"),
        ({"config": {"type": "self_hosted"}, "worker_protocol": "tool"}, "self_hosted", "self_hosted", "tool"),
        ({"config": {"hosting_type": "docker"}}, "docker", "docker", None),
        ({"config": {"type": "cloud"}, "hosting_type": "docker"}, "docker", "docker", None),
        ({"config": {"type": "self_hosted"}, "hosting_type": "self_hosted"}, "self_hosted", "self_hosted", "session"),
        ({"hosting_type": None, "sandbox_provider": None, "config": None}, "local", "local", None),
    ],
)
def test_each_declaration_resolves_to_its_backend(
    body: dict[str, Any], hosting_type: str, provider: str, protocol: str | None
) -> None:
    resolved = made(**body).resolve("workspace")
    assert (resolved.hosting_type, resolved.sandbox_provider) == (hosting_type, provider)
    assert resolved.worker_protocol == protocol
    assert set(orjson.loads(resolved.to_json())) == {
        "hosting_type",
        "sandbox_provider",
        "network",
        "packages",
        "worker_protocol",
    }


def test_the_default_environment_runs_where_the_settings_say() -> None:
    default = replace(made(), id=DEFAULT_ENVIRONMENT_ID, config=DEFAULT_CONFIG)
    assert default.resolve("docker").sandbox_provider == "docker"
    assert default.report("docker").sandbox_provider == "docker"
    assert default.resolve().sandbox_provider == "local"


@pytest.mark.parametrize("hosting_type", ["cloud", "moon", "", "Local", 4, [], {}])
@pytest.mark.parametrize("nested", [False, True])
def test_a_hosting_type_that_cannot_be_served_is_refused(hosting_type: Any, nested: bool) -> None:
    body = {"hosting_type": hosting_type}
    with pytest.raises(UnsupportedHostingType):
        made(**({"config": body} if nested else body))


@pytest.mark.parametrize(
    "body",
    [
        {"config": []},
        {"config": "local"},
        {"config": {"type": "orbit"}},
        {"sandbox_provider": 4},
        {"sandbox_provider": ["local"]},
        {"config": {"sandbox_provider": {}}},
        {"hosting_type": "local", "config": {"hosting_type": "docker"}},
        {"sandbox_provider": "local", "config": {"sandbox_provider": "docker"}},
        {"hosting_type": "local", "config": {"type": "self_hosted"}},
        {"hosting_type": "self_hosted", "config": {"type": "cloud"}},
        {"network": LIMITED_FLAT, "config": {"networking": OPEN}},
        {"network": LIMITED_FLAT, "config": {"networking": LIMITED | {"allow_mcp_servers": False}}},
        {"worker_protocol": "tool", "config": {"type": "self_hosted", "worker_protocol": "session"}},
    ],
)
def test_a_config_that_is_none_or_contradicts_itself_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidEnvironmentConfig):
        made(**body)


@pytest.mark.parametrize(
    ("body", "network"),
    [
        ({}, OPEN),
        ({"network": None}, OPEN),
        ({"network": {"type": "unrestricted"}}, OPEN),
        ({"network": {"type": "limited"}}, CLOSED),
        ({"network": LIMITED_FLAT}, LIMITED),
        ({"config": {"networking": LIMITED}}, LIMITED),
        ({"config": {"network": LIMITED_FLAT}}, LIMITED),
        ({"network": LIMITED_FLAT, "config": {"type": "cloud", "networking": LIMITED}}, LIMITED),
        ({"config": {"networking": {"type": "limited", "allowed_hosts": None, "allow_mcp_servers": None}}}, CLOSED),
        (
            {"network": {"type": "limited", "allowed_hosts": ["*.a.com", "b.com:8080", "10.0.0.1"]}},
            CLOSED | {"allowed_hosts": ["*.a.com", "b.com:8080", "10.0.0.1"]},
        ),
    ],
)
def test_the_network_reads_back_in_both_spellings(body: dict[str, Any], network: dict[str, Any]) -> None:
    environment = made(**body)
    assert environment.resolve().network == network
    report = environment.report()
    assert report.config["networking"] == network
    assert list(report.network.values()) == list(network.values())
    assert made(network=report.network).resolve().network == network


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"network": []}, "network"),
        ({"network": {}}, "network.type"),
        ({"network": {"type": "open"}}, "network.type"),
        ({"network": {"type": "unrestricted", "allowed_hosts": []}}, "network.allowed_hosts"),
        ({"network": {"type": "limited", "allow_mcp_servers": True}}, "network.allow_mcp_servers"),
        ({"config": {"networking": {"type": "limited", "x": 1}}}, "config.networking.x"),
        ({"config": {"networking": CLOSED | {"allow_mcp_servers": "y"}}}, "config.networking.allow_mcp_servers"),
        ({"network": {"type": "limited", "allowed_hosts": "a.com"}}, "network.allowed_hosts"),
        ({"network": {"type": "limited", "allowed_hosts": ["a.com", "https://b.com"]}}, "network.allowed_hosts.1"),
        ({"network": {"type": "limited", "allowed_hosts": [""]}}, "network.allowed_hosts.0"),
        ({"network": {"type": "limited", "allowed_hosts": ["*"]}}, "network.allowed_hosts.0"),
        ({"network": {"type": "limited", "allowed_hosts": ["a.com\n"]}}, "network.allowed_hosts.0"),
        ({"network": {"type": "limited", "allowed_hosts": ["a.com"] * 257}}, "network.allowed_hosts"),
        ({"config": {"nope": 1}}, "config.nope"),
        ({"nope": 1}, "nope"),
        ({"networking": OPEN}, "networking"),
        ({"worker_protocol": "tool"}, "worker_protocol"),
        ({"hosting_type": "self_hosted", "worker_protocol": "both"}, "worker_protocol"),
        ({"sandbox_provider": ""}, "sandbox_provider"),
        ({"sandbox_provider": "x\x00"}, "sandbox_provider"),
        ({"sandbox_provider": "x" * 129}, "sandbox_provider"),
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 257}, "name"),
        ({"name": "\x00"}, "name"),
        ({"description": 4}, "description"),
        ({"description": "\x00"}, "description"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"scope": "planet"}, "scope"),
        ({"packages": "curl"}, "packages"),
        ({"config": {"packages": {"type": "bundle"}}}, "config.packages.type"),
        ({"config": {"packages": {"brew": []}}}, "config.packages.brew"),
    ],
)
def test_a_malformed_field_is_refused_by_its_path(body: dict[str, Any], field: str) -> None:
    with pytest.raises((InvalidRequest, UnknownField)) as refusal:
        made(**body)
    assert refusal.value.field == field
    assert field in refusal.value.message


@pytest.mark.parametrize(
    "body", [{"packages": ["curl"]}, {"packages": {"pip": ["x"]}}, {"config": {"packages": {"apt": ["x"]}}}]
)
def test_packages_are_an_unsupported_capability(body: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedCapability):
        made(**body)


@pytest.mark.parametrize("packages", [None, [], {}, {"type": "packages", "pip": [], "apt": None}])
def test_no_packages_are_no_packages_in_every_form(packages: Any) -> None:
    report = made(packages=packages, config={"packages": packages if isinstance(packages, dict) else None}).report()
    assert report.config["packages"] == {"type": "packages"} | {
        manager: [] for manager in ("apt", "cargo", "gem", "go", "npm", "pip")
    }


def test_an_archived_environment_takes_nothing() -> None:
    made().require_active()
    with pytest.raises(EnvironmentArchived):
        replace(made(), archived_at=MOMENT).require_active()


@pytest.mark.parametrize(
    ("stored", "patch", "hosting_type", "provider"),
    [
        ({"hosting_type": "docker"}, {"name": "x"}, "docker", "docker"),
        ({"hosting_type": "local", "sandbox_provider": "local"}, {"hosting_type": "docker"}, "docker", "docker"),
        ({"hosting_type": "local", "sandbox_provider": "local"}, {"hosting_type": "local"}, "local", "local"),
        ({"hosting_type": "docker"}, {"sandbox_provider": "kubernetes"}, "docker", "kubernetes"),
        ({"hosting_type": "docker"}, {"hosting_type": None}, "local", "local"),
        ({"sandbox_provider": "docker"}, {"sandbox_provider": None}, "local", "local"),
        ({"hosting_type": "docker"}, {"config": {"type": "cloud"}}, "docker", "docker"),
        ({"hosting_type": "docker"}, {"config": {"type": "self_hosted"}}, "self_hosted", "self_hosted"),
        ({"config": {"type": "self_hosted"}}, {"config": {"type": "cloud"}}, "cloud", "local"),
        ({"config": {"type": "cloud"}}, {"hosting_type": "self_hosted"}, "self_hosted", "self_hosted"),
        ({"hosting_type": "self_hosted"}, {"sandbox_provider": "docker"}, "self_hosted", "docker"),
    ],
)
def test_an_update_never_leaves_a_stale_provider_in_charge(
    stored: dict[str, Any], patch: dict[str, Any], hosting_type: str, provider: str
) -> None:
    resolved = updated(made(**stored), **patch).resolve()
    assert (resolved.hosting_type, resolved.sandbox_provider) == (hosting_type, provider)


def test_the_shape_at_creation_decides_how_workers_get_their_work() -> None:
    flat, canonical = made(hosting_type="self_hosted"), made(config={"type": "self_hosted"})
    assert updated(flat, config={"type": "self_hosted"}).report().worker_protocol == "tool"
    assert updated(canonical, hosting_type="self_hosted").report().worker_protocol == "session"
    assert updated(flat, worker_protocol="session").report().worker_protocol == "session"
    assert updated(made(), config={"type": "self_hosted"}).report().worker_protocol == "session"
    assert updated(flat, hosting_type="docker").report().worker_protocol == ""
    assert flat.report().config == {"type": "self_hosted"}


def test_a_limited_network_merges_and_another_type_replaces() -> None:
    stored = made(network=LIMITED_FLAT)
    merged = updated(stored, config={"type": "cloud", "networking": {"type": "limited", "allow_mcp_servers": False}})
    assert merged.resolve().network == LIMITED | {"allow_mcp_servers": False}
    assert updated(stored, network={"type": "unrestricted"}).resolve().network == OPEN
    assert updated(made(), network={"type": "limited"}).resolve().network == CLOSED
    assert updated(stored, name="x").resolve().network == LIMITED
    assert updated(stored, hosting_type="docker").resolve().network == LIMITED


def test_text_fields_and_metadata_of_an_update() -> None:
    stored = made(description="Old.", metadata={"a": "1", "b": "2"}, scope="account")
    assert updated(stored, name=None).name == "place"
    assert updated(stored, description=None).description is None
    assert updated(stored, description="").description == ""
    assert updated(stored, metadata={"a": "", "b": None, "c": "3"}).metadata == '{"c":"3"}'
    assert updated(stored, scope=None).scope == "account"
    assert updated(stored, scope="organization").scope == "organization"
    with pytest.raises(InvalidRequest, match="name cannot be cleared"):
        updated(stored, name="")


def damaged(config: str) -> Environment:
    return replace(made(), config=config)


@pytest.mark.parametrize("config", ["", "{", "[]", "null", '{"hosting_type":1}', '{"network":{"type":"x"}}'])
def test_a_damaged_record_is_told_as_unknown_and_closed_and_runs_nothing(config: str) -> None:
    report = damaged(config).report()
    assert (report.hosting_type, report.sandbox_provider, report.worker_protocol) == ("unknown", "", "")
    assert report.config["networking"] == CLOSED
    with pytest.raises(InvalidEnvironmentConfig):
        damaged(config).resolve()


@pytest.mark.parametrize("patch", [{"name": "x"}, {"metadata": {}}, {"network": LIMITED_FLAT}, {"config": None}])
def test_a_damaged_record_takes_no_update_without_a_replacement(patch: dict[str, Any]) -> None:
    with pytest.raises(InvalidEnvironmentConfig):
        updated(damaged("{"), **patch)


@pytest.mark.parametrize(
    "patch", [{"config": {"type": "cloud"}}, {"hosting_type": "local"}, {"sandbox_provider": "local"}]
)
def test_a_damaged_record_is_repaired_by_a_replacement(patch: dict[str, Any]) -> None:
    assert updated(damaged("{"), **patch).resolve().sandbox_provider == "local"


def test_a_stored_hosting_type_is_echoed_even_where_it_is_refused() -> None:
    stored = damaged('{"hosting_type":"cloud"}')
    assert (stored.report().hosting_type, stored.report().sandbox_provider) == ("cloud", "")
    with pytest.raises(UnsupportedHostingType):
        stored.resolve()


def test_a_named_provider_wins_even_over_a_stored_hosting_type_that_is_refused() -> None:
    assert damaged('{"hosting_type":"cloud","sandbox_provider":"docker"}').resolve().sandbox_provider == "docker"


hosting = st.sampled_from(["local", "docker", "kubernetes", "self_hosted", None])
bodies = st.fixed_dictionaries(
    {},
    optional={
        "hosting_type": hosting,
        "sandbox_provider": st.sampled_from(["local", "docker", "self_hosted", "made-up", None]),
        "network": st.sampled_from([None, OPEN, LIMITED_FLAT, {"type": "limited"}]),
        "config": st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["cloud", "self_hosted"]),
                "networking": st.sampled_from([OPEN, LIMITED, {"type": "limited"}]),
                "hosting_type": hosting,
            },
        )
        | st.none(),
        "worker_protocol": st.sampled_from(["tool", "session", None]),
    },
)


@given(bodies, bodies)
def test_law_an_update_applied_twice_changes_nothing_the_second_time(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    try:
        once = updated(made(**first), **second)
    except DomainError:
        return
    again = updated(once, **second)
    assert content_of(again) == content_of(once)
    assert content_of(updated(once)) == content_of(once)


@given(bodies)
def test_law_what_is_admitted_resolves_and_only_nothing_means_local(body: dict[str, Any]) -> None:
    try:
        environment = made(**body)
    except DomainError:
        return
    resolved = environment.resolve("workspace")
    assert resolved.sandbox_provider == environment.report("workspace").sandbox_provider
    config = body.get("config") or {}
    named = {body.get("hosting_type"), body.get("sandbox_provider"), config.get("hosting_type")} - {None}
    if resolved.sandbox_provider == "local":
        assert "local" in named or (not named and "type" not in config)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5))
def test_law_any_json_is_either_taken_or_refused_by_name(body: dict[str, Any]) -> None:
    for judge in (lambda: made(**body), lambda: updated(made(), **body)):
        try:
            judge()
        except InvalidArgument as refusal:
            assert refusal.field is not None
