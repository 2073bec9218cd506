"""Admission of callers that speak the published contract.

Whoever sends `x-api-key`, `anthropic-version` or `anthropic-beta` claims to be one,
and is held to the whole claim before any route runs, also on paths that no route
serves. Which beta a request needs follows from the family of its path. Everyone else
passes untouched, and `/v1/x` is outside the published contract altogether.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from kit.errors import InvalidArgument

MANAGED_AGENTS_BETA = "managed-agents-2026-04-01"
MEMORY_BETA = "agent-memory-2026-07-22"
VERSION_HEADER = "anthropic-version"
BETA_HEADER = "anthropic-beta"

_BETA_LIST = re.compile(r"[ \t]*[A-Za-z0-9][A-Za-z0-9._-]*[ \t]*(?:,[ \t]*[A-Za-z0-9][A-Za-z0-9._-]*[ \t]*)*", re.ASCII)
_MEMORY_LISTING = re.compile(r"/v1/memory_stores/[^/]+/memories")


class MissingAnthropicVersion(InvalidArgument):
    """A compatibility caller left out the version."""

    reason = "MISSING_ANTHROPIC_VERSION"


class UnsupportedAnthropicVersion(InvalidArgument):
    """The version is outside the supported set."""

    reason = "UNSUPPORTED_ANTHROPIC_VERSION"


class MissingAnthropicBeta(InvalidArgument):
    """A compatibility caller left out the beta."""

    reason = "MISSING_ANTHROPIC_BETA"


class MalformedAnthropicBeta(InvalidArgument):
    """The beta header is not a list of identifiers."""

    reason = "MALFORMED_ANTHROPIC_BETA"


class UnsupportedAnthropicBeta(InvalidArgument):
    """The beta does not belong to the family of the path."""

    reason = "UNSUPPORTED_ANTHROPIC_BETA"


class ConflictingMemoryStoreBeta(InvalidArgument):
    """Both betas came on a memory-store request."""

    reason = "CONFLICTING_MEMORY_STORE_BETA"


@dataclass(frozen=True, slots=True)
class Family:
    """What a group of paths asks of the beta header."""

    accepted: frozenset[str]
    beta_may_be_missing: bool = False


RESOURCES = Family(frozenset({MANAGED_AGENTS_BETA}))
MEMORY = Family(frozenset({MEMORY_BETA}))
MEMORY_READS = Family(frozenset({MEMORY_BETA, MANAGED_AGENTS_BETA}))
# These three left their beta behind: clients of several ages send none, or an old one.
TOLERANT = {
    "files": Family(frozenset({MANAGED_AGENTS_BETA, "files-api-2025-04-14"}), beta_may_be_missing=True),
    "skills": Family(frozenset({MANAGED_AGENTS_BETA, "skills-2025-10-02"}), beta_may_be_missing=True),
    "models": Family(frozenset({MANAGED_AGENTS_BETA}), beta_may_be_missing=True),
}


def speaks_published_contract(headers: Mapping[str, str]) -> bool:
    """True for a caller that gets published shapes."""
    return "x-api-key" in headers or VERSION_HEADER in headers or BETA_HEADER in headers


class Compatibility:
    """Checks the compatibility headers of a request."""

    def __init__(self, versions: frozenset[str]) -> None:
        self._versions = versions

    def admit(self, *, method: str, path: str, query: str, headers: Mapping[str, str]) -> None:
        """Return if the request may go on to routing; raise one of six refusals if not."""
        if not _is_gated(path) or not speaks_published_contract(headers):
            return
        self._check_version(headers.get(VERSION_HEADER))
        _check_beta(family_of(method, path, query), _is_memory(path), headers.get(BETA_HEADER))

    def _check_version(self, version: str | None) -> None:
        supported = ", ".join(sorted(self._versions))
        if version is None:
            raise MissingAnthropicVersion(f"The anthropic-version header is missing. Supported: {supported}.")
        if version.strip() not in self._versions:
            raise UnsupportedAnthropicVersion(
                f"anthropic-version {version.strip()[:64]!r} is not supported. Supported: {supported}."
            )


def family_of(method: str, path: str, query: str) -> Family:
    """The family that a path belongs to."""
    segment = path.split("/", 3)[2] if path.count("/") >= 2 else ""
    if segment == "memory_stores":
        return MEMORY_READS if method in ("GET", "HEAD") and _MEMORY_LISTING.fullmatch(path) else MEMORY
    if path == "/v1/files" and "scope_id" in parse_qs(query, keep_blank_values=True):
        return RESOURCES
    return TOLERANT.get(segment, RESOURCES)


def _check_beta(family: Family, is_memory: bool, header: str | None) -> None:
    needed = " or ".join(sorted(family.accepted))
    if header is None:
        if family.beta_may_be_missing:
            return
        raise MissingAnthropicBeta(f"The anthropic-beta header is missing. This route needs {needed}.")
    if not _BETA_LIST.fullmatch(header):
        raise MalformedAnthropicBeta("anthropic-beta must be a comma-separated list of identifiers.")
    betas = {part.strip() for part in header.split(",")}
    if is_memory and {MEMORY_BETA, MANAGED_AGENTS_BETA} <= betas:
        raise ConflictingMemoryStoreBeta(
            f"{MEMORY_BETA} and {MANAGED_AGENTS_BETA} exclude each other on a memory-store request; send one."
        )
    if not betas & family.accepted:
        raise UnsupportedAnthropicBeta(f"anthropic-beta does not fit this route, which needs {needed}.")


def _is_gated(path: str) -> bool:
    return (path == "/v1" or path.startswith("/v1/")) and not (path == "/v1/x" or path.startswith("/v1/x/"))


def _is_memory(path: str) -> bool:
    return path == "/v1/memory_stores" or path.startswith("/v1/memory_stores/")
