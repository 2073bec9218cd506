"""Admission: each combination of headers and path family has exactly one answer."""

from __future__ import annotations

import pytest

from kit.errors import InvalidArgument
from services.gateway.admission.compatibility import Compatibility
from services.gateway.admission.credentials import Authenticator
from services.gateway.errors import AmbiguousCredential, InvalidCredential

VERSIONS = frozenset({"2023-06-01", "2026-10-21"})
AGENTS_BETA, MEMORY_BETA = "managed-agents-2026-04-01", "agent-memory-2026-07-22"
RESOURCE_PATHS = ("/v1/agents", "/v1/sessions/s/events", "/v1/vaults", "/v1/unknown", "/v1")


def verdict(path: str, *, method: str = "GET", query: str = "", **headers: str | None) -> str:
    given = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
    try:
        Compatibility(VERSIONS).admit(method=method, path=path, query=query, headers=given)
    except InvalidArgument as refusal:
        return refusal.reason.lower()
    return "admitted"


@pytest.mark.parametrize("path", RESOURCE_PATHS)
@pytest.mark.parametrize(
    ("version", "beta", "expected"),
    [
        ("2023-06-01", AGENTS_BETA, "admitted"),
        ("2026-10-21", AGENTS_BETA, "admitted"),
        ("2026-10-21", f"other-2025-01-01, {AGENTS_BETA}", "admitted"),
        ("2023-06-01", f"{AGENTS_BETA},{MEMORY_BETA}", "admitted"),
        (None, AGENTS_BETA, "missing_anthropic_version"),
        ("2024-01-01", AGENTS_BETA, "unsupported_anthropic_version"),
        ("", AGENTS_BETA, "unsupported_anthropic_version"),
        ("2024-01-01", None, "unsupported_anthropic_version"),
        ("2023-06-01", None, "missing_anthropic_beta"),
        ("2023-06-01", "", "malformed_anthropic_beta"),
        ("2023-06-01", f"{AGENTS_BETA},", "malformed_anthropic_beta"),
        ("2023-06-01", f"{AGENTS_BETA};q=1", "malformed_anthropic_beta"),
        ("2023-06-01", "two words", "malformed_anthropic_beta"),
        ("2023-06-01", MEMORY_BETA, "unsupported_anthropic_beta"),
        ("2023-06-01", "other-2025-01-01", "unsupported_anthropic_beta"),
    ],
)
def test_resource_paths(path: str, version: str | None, beta: str | None, expected: str) -> None:
    assert verdict(path, anthropic_version=version, anthropic_beta=beta) == expected


@pytest.mark.parametrize("path", [*RESOURCE_PATHS, "/v1/memory_stores", "/v1/files"])
def test_plain_callers_pass_untouched(path: str) -> None:
    assert verdict(path) == "admitted"
    assert verdict(path, authorization="Bearer key") == "admitted"


def test_the_key_header_alone_makes_a_compatibility_caller() -> None:
    assert verdict("/v1/agents", x_api_key="key") == "missing_anthropic_version"
    assert verdict("/v1/agents", x_api_key="key", anthropic_version="2023-06-01") == "missing_anthropic_beta"


@pytest.mark.parametrize("path", ["/v1/x", "/v1/x/health", "/v1/x/unknown", "/docs", "/api/agents/a"])
def test_extension_paths_are_outside_the_contract(path: str) -> None:
    assert verdict(path, x_api_key="key", anthropic_version="junk", anthropic_beta="!!") == "admitted"


def test_a_path_that_only_begins_like_the_extension_is_gated() -> None:
    assert verdict("/v1/xylophones", x_api_key="key") == "missing_anthropic_version"


@pytest.mark.parametrize(
    ("method", "path", "beta", "expected"),
    [
        ("GET", "/v1/memory_stores", MEMORY_BETA, "admitted"),
        ("POST", "/v1/memory_stores/m/memories", MEMORY_BETA, "admitted"),
        ("GET", "/v1/memory_stores", AGENTS_BETA, "unsupported_anthropic_beta"),
        ("POST", "/v1/memory_stores/m/memories", AGENTS_BETA, "unsupported_anthropic_beta"),
        ("GET", "/v1/memory_stores", f"{MEMORY_BETA},{AGENTS_BETA}", "conflicting_memory_store_beta"),
        ("GET", "/v1/memory_stores", None, "missing_anthropic_beta"),
        ("GET", "/v1/memory_stores/m/memories", AGENTS_BETA, "admitted"),
        ("GET", "/v1/memory_stores/m/memories", MEMORY_BETA, "admitted"),
        ("GET", "/v1/memory_stores/m/memories", f"{MEMORY_BETA},{AGENTS_BETA}", "conflicting_memory_store_beta"),
        ("GET", "/v1/memory_stores/m/memories/x", AGENTS_BETA, "unsupported_anthropic_beta"),
    ],
)
def test_memory_stores(method: str, path: str, beta: str | None, expected: str) -> None:
    assert verdict(path, method=method, anthropic_version="2023-06-01", anthropic_beta=beta) == expected


@pytest.mark.parametrize(
    ("path", "own_beta"),
    [("/v1/files", "files-api-2025-04-14"), ("/v1/skills/s", "skills-2025-10-02"), ("/v1/models", None)],
)
def test_families_that_left_their_beta_behind(path: str, own_beta: str | None) -> None:
    assert verdict(path, anthropic_version="2026-10-21") == "admitted"
    assert verdict(path, anthropic_version="2026-10-21", anthropic_beta=AGENTS_BETA) == "admitted"
    if own_beta:
        assert verdict(path, anthropic_version="2026-10-21", anthropic_beta=own_beta) == "admitted"
    unsupported = verdict(path, anthropic_version="2026-10-21", anthropic_beta="other-2025-01-01")
    assert unsupported == "unsupported_anthropic_beta"
    assert verdict(path, anthropic_version="2026-10-21", anthropic_beta="") == "malformed_anthropic_beta"
    assert verdict(path, x_api_key="key") == "missing_anthropic_version"


@pytest.mark.parametrize("query", ["scope_id=sess_1", "limit=2&scope_id=", "scope%5Fid=sess_1"])
def test_a_scoped_file_listing_needs_the_beta(query: str) -> None:
    assert verdict("/v1/files", query=query, anthropic_version="2023-06-01") == "missing_anthropic_beta"
    admitted = verdict("/v1/files", query=query, anthropic_version="2023-06-01", anthropic_beta=AGENTS_BETA)
    assert admitted == "admitted"


async def test_authentication_is_off_without_a_key() -> None:
    open_door = Authenticator(None)
    assert not open_door.enabled
    assert (await open_door.authenticate({"x-api-key": "a", "authorization": "Bearer b"})).id == "anonymous"


@pytest.mark.parametrize(
    "headers", [{"x-api-key": "secret"}, {"authorization": "Bearer secret"}, {"authorization": "bearer  secret "}]
)
async def test_either_header_may_carry_the_key(headers: dict[str, str]) -> None:
    assert (await Authenticator("secret").authenticate(headers)).workspace_id == "wrkspc_default"


@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        ({}, InvalidCredential),
        ({"x-api-key": "wrong"}, InvalidCredential),
        ({"x-api-key": ""}, InvalidCredential),
        ({"authorization": "Bearer wrong"}, InvalidCredential),
        ({"authorization": "Basic c2VjcmV0"}, InvalidCredential),
        ({"authorization": "Bearer "}, InvalidCredential),
        ({"authorization": "Bearer s\xe9cret"}, InvalidCredential),
        ({"x-api-key": "secret", "authorization": "Bearer secret"}, AmbiguousCredential),
    ],
)
async def test_everything_else_is_refused(headers: dict[str, str], refusal: type[Exception]) -> None:
    with pytest.raises(refusal):
        await Authenticator("secret").authenticate(headers)
