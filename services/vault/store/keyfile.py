"""Master keys in a local file, with versions.

The file holds either one secret in plain text, or a JSON object
`{"format": "managed-agents keyfile 1", "versions": [{"secret": "…", "created_at": "…"}]}`
whose last version wraps. Every replica that reads the same file follows it: a changed file
is read again before the next wrap, and before an unknown version counts as unknown. A new
version is added by one process at a time and appears whole or not at all; former versions
are never dropped from it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kit.clock import Clock, rfc3339
from kit.config import ConfigError
from kit.telemetry import register_secret
from services.vault.domain.errors import KeyRotationUnavailable, SealBroken, UnknownMasterKey
from services.vault.domain.master_keys import MasterKeySet, Wrapped

FORMAT = "managed-agents keyfile 1"
SECRET_BYTES = 32


class Keyfile:
    """The provider. `former` is a secret that was used before the file: it opens, and wraps nothing."""

    name = "keyfile"

    def __init__(self, path: Path, clock: Clock, former: str | None = None) -> None:
        """ConfigError for a file that is missing or unreadable."""
        self._path = path
        self._clock = clock
        self._former = [former] if former else []
        self._seen: tuple[int, int, int] | None = None
        self._keys = self._read()

    async def current_key_id(self) -> bytes:
        """The newest version of the file."""
        return self._fresh().current.key_id

    async def version_count(self) -> int:
        """How many versions can unwrap."""
        return len(self._fresh().versions)

    async def wrap(self, data_key: bytes, associated: bytes) -> Wrapped:
        """Wraps under the newest version."""
        return self._fresh().current.wrap(data_key, associated)

    async def unwrap(self, wrapped: Wrapped, associated: bytes) -> bytes:
        """Opens what any version wrapped, also one that came since the file was read."""
        key = self._keys.find(wrapped.key_id) or self._fresh().find(wrapped.key_id)
        if key is None:
            raise UnknownMasterKey("A value was sealed with another master key.")
        return key.unwrap(wrapped.blob, associated)

    async def add_version(self) -> bytes:
        """Writes the file anew with one version more."""
        try:
            with self._locked():
                versions = _parse(self._path.read_text(encoding="utf-8"), self._path)
                fresh = {"secret": secrets.token_urlsafe(SECRET_BYTES), "created_at": rfc3339(self._clock.now())}
                register_secret(fresh["secret"])
                self._replace(json.dumps({"format": FORMAT, "versions": [*versions, fresh]}, indent=2) + "\n")
        except OSError as error:
            raise KeyRotationUnavailable(
                f"The key file {self._path} can't be written: {error.strerror}. Add a version to it where it is kept."
            ) from error
        except ConfigError as error:
            raise KeyRotationUnavailable(str(error)) from error
        return self._fresh().current.key_id

    def _fresh(self) -> MasterKeySet:
        """The keys of the file as it is. One that can't be read any more leaves what was read before."""
        try:
            if _signature(self._path) != self._seen:
                self._keys = self._read()
        except (OSError, ConfigError) as error:
            if self._keys is None:
                raise SealBroken(f"The key file can't be read: {error}") from error
        return self._keys

    def _read(self) -> MasterKeySet:
        try:
            signature = _signature(self._path)
            versions = _parse(self._path.read_text(encoding="utf-8"), self._path)
        except OSError as error:
            raise ConfigError(
                f"MANAGED_AGENTS_SECRET_KEY_FILE names {self._path}, which can't be read: {error.strerror}."
            ) from None
        found = [version["secret"] for version in versions]
        for secret in found:
            register_secret(secret)
        try:
            keys = MasterKeySet.derive([*self._former, *found])
        except ValueError as error:
            raise ConfigError(f"MANAGED_AGENTS_SECRET_KEY_FILE names {self._path}: {error}.") from None
        self._seen = signature
        return keys

    def _replace(self, text: str) -> None:
        """Whole or not at all, and on the disk before anything is sealed with it."""
        fresh = self._path.with_name(f"{self._path.name}.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _signature(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _parse(text: str, path: Path) -> list[dict[str, Any]]:
    """The versions of a file; ConfigError where it is neither form."""
    if not text.lstrip().startswith("{"):
        if not text.strip():
            raise ConfigError(f"MANAGED_AGENTS_SECRET_KEY_FILE names {path}, which is empty.")
        return [{"secret": text.strip()}]
    told = f"MANAGED_AGENTS_SECRET_KEY_FILE names {path}, which is not a key file of this version."
    try:
        document = json.loads(text)
        versions = document["versions"]
        is_sound = document["format"] == FORMAT and all(isinstance(version["secret"], str) for version in versions)
    except (ValueError, KeyError, TypeError):
        raise ConfigError(told) from None
    if not is_sound or not versions:
        raise ConfigError(told)
    return versions
