"""Envelope encryption with AES-256-GCM.

Each sealed value has a data key of its own; the data key is wrapped by the master key, of
which there may be versions. The identity of the row (`associated`, such as
`settings:wrkspc_default`) is bound into both layers, so a ciphertext that is moved to
another row does not open. To wrap anew under another version touches only the wrapped key.

Layout 1, of providers whose ids have 8 bytes and whose wrapped keys have 60:
format (1) | key id (8) | wrapped key (60) | nonce (12) | ciphertext with tag.
Layout 2, of any other provider:
format (1) | length (1) and key id | length (2) and wrapped key | nonce (12) | ciphertext with tag.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from services.vault.domain.errors import SealBroken
from services.vault.domain.master_keys import KEY_BYTES, KEY_ID_BYTES, NONCE_BYTES, MasterKeys, SecretKeys, Wrapped

SHORT, LONG = b"\x01", b"\x02"
SHORT_BLOB_BYTES = NONCE_BYTES + KEY_BYTES + 16
DAMAGED = "A sealed value is damaged."


@dataclass(frozen=True, slots=True)
class Envelope:
    """A sealed value, taken apart."""

    wrapped: Wrapped
    # Nonce and ciphertext under the data key.
    body: bytes

    @classmethod
    def parse(cls, sealed: bytes) -> Envelope:
        """SealBroken for what is no sealed value."""
        if sealed[:1] == SHORT:
            at = 1 + KEY_ID_BYTES
            envelope = cls(Wrapped(sealed[1:at], sealed[at : at + SHORT_BLOB_BYTES]), sealed[at + SHORT_BLOB_BYTES :])
        elif sealed[:1] == LONG and len(sealed) > 1:
            at = 2 + sealed[1]
            blob_at = at + 2
            end = blob_at + int.from_bytes(sealed[at:blob_at], "big")
            envelope = cls(Wrapped(sealed[2:at], sealed[blob_at:end]), sealed[end:])
        else:
            raise SealBroken(DAMAGED)
        if len(envelope.body) < NONCE_BYTES:
            raise SealBroken(DAMAGED)
        return envelope

    def encode(self) -> bytes:
        """As it is stored."""
        return prefix_of(self.wrapped.key_id, len(self.wrapped.blob)) + self._blob() + self.body

    def _blob(self) -> bytes:
        blob = self.wrapped.blob
        is_short = len(self.wrapped.key_id) == KEY_ID_BYTES and len(blob) == SHORT_BLOB_BYTES
        return blob if is_short else len(blob).to_bytes(2, "big") + blob


def prefix_of(key_id: bytes, blob_bytes: int = SHORT_BLOB_BYTES) -> bytes:
    """How every value begins that this version of a master key wraps."""
    if len(key_id) == KEY_ID_BYTES and blob_bytes == SHORT_BLOB_BYTES:
        return SHORT + key_id
    return LONG + bytes([len(key_id)]) + key_id


class Sealer:
    """Seals and opens with the master keys of a provider."""

    def __init__(self, keys: MasterKeys) -> None:
        self.keys = keys

    @classmethod
    def from_secret(cls, secret: str) -> Sealer:
        """With one secret of the operator; ValueError if it is short."""
        return cls(SecretKeys(secret))

    async def seal(self, plaintext: bytes, *, associated: str) -> bytes:
        """Seals `plaintext` for the row that `associated` names."""
        identity = associated.encode()
        data_key, nonce = os.urandom(KEY_BYTES), os.urandom(NONCE_BYTES)
        wrapped = await self.keys.wrap(data_key, identity)
        return Envelope(wrapped, nonce + AESGCM(data_key).encrypt(nonce, plaintext, identity)).encode()

    async def open(self, sealed: bytes, *, associated: str) -> bytes:
        """Opens what `seal` made for the same row. SealBroken for anything else."""
        identity = associated.encode()
        envelope = Envelope.parse(sealed)
        data_key = await self.keys.unwrap(envelope.wrapped, identity)
        try:
            return AESGCM(data_key).decrypt(envelope.body[:NONCE_BYTES], envelope.body[NONCE_BYTES:], identity)
        except (InvalidTag, ValueError) as error:
            raise SealBroken("A sealed value does not open with this master key.") from error

    async def rewrap(self, sealed: bytes, *, associated: str) -> bytes:
        """The same value under the version that wraps now; the secret itself is not opened."""
        identity = associated.encode()
        envelope = Envelope.parse(sealed)
        data_key = await self.keys.unwrap(envelope.wrapped, identity)
        return Envelope(await self.keys.wrap(data_key, identity), envelope.body).encode()

    async def current_prefix(self) -> bytes:
        """How every value begins that is sealed now: what begins otherwise waits to be wrapped anew."""
        wrapped = await self.keys.wrap(bytes(KEY_BYTES), b"prefix")
        return prefix_of(wrapped.key_id, len(wrapped.blob))
