"""Envelope encryption with AES-256-GCM.

Each sealed value has a data key of its own; the data key is wrapped by the master
key. The identity of the row (`associated`, such as `settings:wrkspc_default`) is
bound into both layers, so a ciphertext that is moved to another row does not open.

Layout of a sealed value: format (1) | master key id (8) | nonce (12) | wrapped data
key (48) | nonce (12) | ciphertext with tag. A format byte leaves room for changes;
the key id leaves room for rotation.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from services.vault.domain.errors import SealBroken

FORMAT = b"\x01"
KEY_ID_BYTES = 8
NONCE_BYTES = 12
DATA_KEY_BYTES = 32
WRAPPED_BYTES = DATA_KEY_BYTES + 16
HEADER_BYTES = len(FORMAT) + KEY_ID_BYTES + NONCE_BYTES + WRAPPED_BYTES + NONCE_BYTES
MIN_SECRET_CHARACTERS = 16


@dataclass(frozen=True, slots=True, repr=False)
class Sealer:
    """Seals and opens with one master key. `random` gives n random bytes."""

    key_id: bytes
    master_key: bytes
    random: Callable[[int], bytes] = os.urandom

    @classmethod
    def from_secret(cls, secret: str) -> Sealer:
        """Derives the master key from the operator's secret; ValueError if it is short."""
        if len(secret) < MIN_SECRET_CHARACTERS:
            raise ValueError(
                f"the secret key has {len(secret)} characters; at least {MIN_SECRET_CHARACTERS} are needed"
            )
        material = HKDF(algorithm=SHA256(), length=DATA_KEY_BYTES, salt=None, info=b"managed-agents master key").derive(
            secret.encode()
        )
        return cls(key_id=hashlib.sha256(b"id:" + material).digest()[:KEY_ID_BYTES], master_key=material)

    def seal(self, plaintext: bytes, *, associated: str) -> bytes:
        """Seals `plaintext` for the row that `associated` names."""
        identity = associated.encode()
        data_key, wrap_nonce, nonce = self.random(DATA_KEY_BYTES), self.random(NONCE_BYTES), self.random(NONCE_BYTES)
        wrapped = AESGCM(self.master_key).encrypt(wrap_nonce, data_key, identity)
        return (
            FORMAT + self.key_id + wrap_nonce + wrapped + nonce + AESGCM(data_key).encrypt(nonce, plaintext, identity)
        )

    def open(self, sealed: bytes, *, associated: str) -> bytes:
        """Opens what `seal` made for the same row. SealBroken for anything else."""
        if len(sealed) < HEADER_BYTES or sealed[:1] != FORMAT:
            raise SealBroken("A sealed value is damaged.")
        identity = associated.encode()
        at = len(FORMAT) + KEY_ID_BYTES
        wrap_nonce, at = sealed[at : at + NONCE_BYTES], at + NONCE_BYTES
        wrapped, at = sealed[at : at + WRAPPED_BYTES], at + WRAPPED_BYTES
        nonce, ciphertext = sealed[at : at + NONCE_BYTES], sealed[at + NONCE_BYTES :]
        try:
            data_key = AESGCM(self.master_key).decrypt(wrap_nonce, wrapped, identity)
            return AESGCM(data_key).decrypt(nonce, ciphertext, identity)
        except InvalidTag as error:
            raise SealBroken("A sealed value does not open with this master key.") from error
