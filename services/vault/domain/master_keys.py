"""Master keys, in the shape of a key management service: they wrap data keys and never leave.

A provider names the version that wraps now, and unwraps what any of its versions wrapped.
`associated` is authenticated with the data key, as the context of a KMS is. Two providers
derive their keys from secrets of the operator: one from a single secret (here), one from a
file with versions (`store.keyfile`). A provider on a network fits the same
protocol, which is why its calls are awaited.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from services.vault.domain.errors import KeyRotationUnavailable, SealBroken, UnknownMasterKey

KEY_ID_BYTES = 8
NONCE_BYTES = 12
KEY_BYTES = 32
MIN_SECRET_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A data key as its provider wrapped it, and the version that did."""

    key_id: bytes
    blob: bytes


class MasterKeys(Protocol):
    """What the sealer asks of a provider."""

    name: str

    async def current_key_id(self) -> bytes:
        """The version that wraps now."""
        ...

    async def version_count(self) -> int:
        """How many versions can unwrap."""
        ...

    async def wrap(self, data_key: bytes, associated: bytes) -> Wrapped:
        """Wraps under the current version."""
        ...

    async def unwrap(self, wrapped: Wrapped, associated: bytes) -> bytes:
        """UnknownMasterKey where the version isn't the provider's, SealBroken where it doesn't open."""
        ...

    async def add_version(self) -> bytes:
        """Adds a version that wraps from now on. KeyRotationUnavailable where there can't be another."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class MasterKey:
    """One version, derived from a secret."""

    key_id: bytes
    material: bytes

    @classmethod
    def derive(cls, secret: str) -> MasterKey:
        """ValueError if the secret is short."""
        if len(secret) < MIN_SECRET_CHARACTERS:
            raise ValueError(
                f"the secret key has {len(secret)} characters; at least {MIN_SECRET_CHARACTERS} are needed"
            )
        derivation = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=b"managed-agents master key")
        material = derivation.derive(secret.encode())
        return cls(hashlib.sha256(b"id:" + material).digest()[:KEY_ID_BYTES], material)

    def wrap(self, data_key: bytes, associated: bytes) -> Wrapped:
        """Nonce and ciphertext."""
        nonce = os.urandom(NONCE_BYTES)
        return Wrapped(self.key_id, nonce + AESGCM(self.material).encrypt(nonce, data_key, associated))

    def unwrap(self, blob: bytes, associated: bytes) -> bytes:
        """SealBroken where it doesn't open."""
        try:
            return AESGCM(self.material).decrypt(blob[:NONCE_BYTES], blob[NONCE_BYTES:], associated)
        except (InvalidTag, ValueError) as error:
            raise SealBroken("A sealed value does not open with this master key.") from error


@dataclass(frozen=True, slots=True, repr=False)
class MasterKeySet:
    """Versions in the order in which they came; the last one wraps."""

    versions: tuple[MasterKey, ...]

    @classmethod
    def derive(cls, secrets: Sequence[str]) -> MasterKeySet:
        """ValueError for none, or for a short one."""
        if not secrets:
            raise ValueError("there is no secret key")
        return cls(tuple(MasterKey.derive(secret) for secret in secrets))

    @property
    def current(self) -> MasterKey:
        """The version that wraps."""
        return self.versions[-1]

    def find(self, key_id: bytes) -> MasterKey | None:
        """The version of this id."""
        return next((version for version in self.versions if version.key_id == key_id), None)


class SecretKeys:
    """One secret of the operator. `former` is one that was used before: it opens, and wraps nothing."""

    name = "secret"

    def __init__(self, secret: str, former: str | None = None) -> None:
        """ValueError for a short secret."""
        self._keys = MasterKeySet.derive([former, secret] if former else [secret])

    async def current_key_id(self) -> bytes:
        """The version that wraps now."""
        return self._keys.current.key_id

    async def version_count(self) -> int:
        """How many versions can unwrap."""
        return len(self._keys.versions)

    async def wrap(self, data_key: bytes, associated: bytes) -> Wrapped:
        """Wraps under the current secret."""
        return self._keys.current.wrap(data_key, associated)

    async def unwrap(self, wrapped: Wrapped, associated: bytes) -> bytes:
        """Opens what either secret wrapped."""
        key = self._keys.find(wrapped.key_id)
        if key is None:
            raise UnknownMasterKey("A value was sealed with another master key.")
        return key.unwrap(wrapped.blob, associated)

    async def add_version(self) -> bytes:
        """A variable of the environment can't be changed from in here."""
        raise KeyRotationUnavailable(
            "The master key is the variable MANAGED_AGENTS_SECRET_KEY, which a process can't change. Start the vault "
            "with the new secret there and the present one in MANAGED_AGENTS_FORMER_SECRET_KEY: everything is sealed "
            "anew in the background. Or use MANAGED_AGENTS_SECRET_KEY_FILE, to which versions can be added."
        )
