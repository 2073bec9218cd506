"""The area `storage.artifacts`: where the bytes of files are kept.

`local` is the folder of the sessions service. `s3` is a bucket of whoever speaks that protocol; its secret is sealed
beside the document as the model's key is, and may be a `${NAME}` of the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from services.vault.domain import adapters
from services.vault.domain.faults import Faults, joined

AREA = "storage.artifacts"
SECRET_PATH = f"{AREA}.options.secret_access_key"
MASK = "********"
DEFAULT_REGION = "us-east-1"
_REFERENCE = re.compile(r"^\$\{([A-Z][A-Z0-9_]{0,127})\}$")
_REFERABLE = frozenset({"AWS_SECRET_ACCESS_KEY", "MANAGED_AGENTS_S3_SECRET_ACCESS_KEY"})
_ENVIRONMENT = {
    "bucket": "MANAGED_AGENTS_S3_BUCKET",
    "region": "MANAGED_AGENTS_S3_REGION",
    "endpoint": "MANAGED_AGENTS_S3_ENDPOINT",
    "prefix": "MANAGED_AGENTS_S3_PREFIX",
    "access_key_id": "MANAGED_AGENTS_S3_ACCESS_KEY_ID",
    "secret_access_key": "MANAGED_AGENTS_S3_SECRET_ACCESS_KEY",
}


@dataclass(frozen=True, slots=True)
class ArtifactSettings:
    """Which store, and for `s3` how to reach it. `secret_access_key` may be a `${NAME}` reference."""

    provider: str = "local"
    bucket: str = ""
    region: str = DEFAULT_REGION
    endpoint: str = ""
    prefix: str = ""
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)

    def document(self) -> dict[str, Any]:
        """The public JSON object, with the secret masked."""
        if self.provider != "s3":
            return {"provider": self.provider, "options": {}}
        return {
            "provider": self.provider,
            "options": {
                "bucket": self.bucket,
                "region": self.region,
                "endpoint": self.endpoint or None,
                "prefix": self.prefix or None,
                "access_key_id": self.access_key_id or None,
                "secret_access_key": MASK if self.secret_access_key else None,
            },
        }

    def secret_states(self) -> dict[str, Any]:
        """Whether the secret is set; nothing where the store has none."""
        if self.provider != "s3":
            return {}
        state = "configured" if self.secret_access_key else "not_set"
        return {"storage": {"artifacts": {"options": {"secret_access_key": state}}}}

    def opened(self, environ: Mapping[str, str]) -> ArtifactSettings:
        """With the secret itself in place of a reference to it."""
        match = _REFERENCE.match(self.secret_access_key)
        return replace(self, secret_access_key=environ.get(match.group(1), "")) if match else self


LOCAL = ArtifactSettings()


def from_environment(environ: Mapping[str, str]) -> ArtifactSettings:
    """A bucket where `MANAGED_AGENTS_S3_BUCKET` names one, else the folder. ValueError for unusable ones."""
    given = {name: environ.get(variable, "") for name, variable in _ENVIRONMENT.items()}
    if not given["bucket"]:
        return ArtifactSettings()
    faults = Faults()
    found = read(
        {"provider": "s3", "options": {name: value for name, value in given.items() if value}},
        faults,
        ArtifactSettings(),
    )
    if faults.found:
        name = faults.found[0].path.rpartition(".")[2]
        raise ValueError(f"{_ENVIRONMENT.get(name, 'MANAGED_AGENTS_S3_BUCKET')} {faults.found[0].problem}")
    return found


def read(value: Any, faults: Faults, stored: ArtifactSettings) -> ArtifactSettings:
    """The area of a document; a mask keeps the stored secret."""
    section = faults.object_at(value, AREA, {"provider", "options"})
    if not isinstance(value, dict):
        return ArtifactSettings()
    count = len(faults.found)
    adapter = adapters.choose(AREA, "provider", section, faults)
    if len(faults.found) > count:
        return ArtifactSettings()
    options = adapters.read_options(AREA, adapter, section.get("options"), faults)
    if adapter.id != "s3" or len(faults.found) > count:
        return ArtifactSettings(adapter.id)
    given = {name: text for name, text in options.items() if text}
    if given.get("secret_access_key") == MASK:
        given["secret_access_key"] = stored.secret_access_key
    found = ArtifactSettings("s3", **given)
    _check(found, faults)
    return found


def check_reference(found: ArtifactSettings, environ: Mapping[str, str], faults: Faults) -> None:
    """A reference must lead to a secret. What is saved already may lack it."""
    match = _REFERENCE.match(found.secret_access_key)
    if match and not environ.get(match.group(1)):
        faults.add(SECRET_PATH, f"refers to {match.group(1)}, which is not set where the vault runs")


def _check(found: ArtifactSettings, faults: Faults) -> None:
    if not found.bucket:
        faults.add(joined(AREA, "options.bucket"), "is required for s3")
    if bool(found.access_key_id) != bool(found.secret_access_key):
        missing = "secret_access_key" if found.access_key_id else "access_key_id"
        faults.add(joined(AREA, f"options.{missing}"), "must be given together with the other half of the key")
    match = _REFERENCE.match(found.secret_access_key)
    if match and match.group(1) not in _REFERABLE:
        faults.add(SECRET_PATH, f"may only refer to {' or '.join(sorted(_REFERABLE))}")
