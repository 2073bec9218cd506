"""Sealed values open for their own row with their own key, and for nothing else; a key may have versions."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from kit.config import ConfigError
from kit.testing import FixedClock
from services.vault.domain.errors import KeyRotationUnavailable, SealBroken, UnknownMasterKey
from services.vault.domain.master_keys import MasterKey, SecretKeys, Wrapped
from services.vault.domain.sealing import Envelope, Sealer
from services.vault.store.keyfile import Keyfile

SECRET, OTHER_SECRET = "a secret of enough length", "another secret of enough length"
SEALER, OTHER = Sealer.from_secret(SECRET), Sealer.from_secret(OTHER_SECRET)


def seal(plaintext: bytes, row: str, sealer: Sealer = SEALER) -> bytes:
    return asyncio.run(sealer.seal(plaintext, associated=row))


def opened(sealed: bytes, row: str, sealer: Sealer = SEALER) -> bytes:
    return asyncio.run(sealer.open(sealed, associated=row))


class ForeignKeys(SecretKeys):
    """A provider whose ids and wrapped keys have other sizes, as those of a service on the network have."""

    async def wrap(self, data_key: bytes, associated: bytes) -> Wrapped:
        inner = await super().wrap(data_key, associated)
        return Wrapped(b"arn:of-a-key/" + inner.key_id, b"padding" * 30 + inner.blob)

    async def unwrap(self, wrapped: Wrapped, associated: bytes) -> bytes:
        return await super().unwrap(Wrapped(wrapped.key_id[-8:], wrapped.blob[-60:]), associated)


@given(st.binary(max_size=4096), st.text(max_size=64), st.booleans())
def test_what_is_sealed_opens_again(plaintext: bytes, row: str, foreign: bool) -> None:
    sealer = Sealer(ForeignKeys(SECRET)) if foreign else SEALER
    assert opened(seal(plaintext, row, sealer), row, sealer) == plaintext


@given(st.binary(min_size=8, max_size=64))
def test_a_sealed_value_shows_nothing_of_the_plaintext_and_never_repeats(plaintext: bytes) -> None:
    first, second = seal(plaintext, "row"), seal(plaintext, "row")
    assert first != second
    assert plaintext not in first


@given(st.lists(st.text(max_size=20), min_size=2, max_size=2, unique=True), st.binary(max_size=20), st.booleans())
def test_a_value_moved_to_another_row_does_not_open(rows: list[str], secret: bytes, rewrapped: bool) -> None:
    sealed = seal(secret, rows[0])
    with pytest.raises(SealBroken):
        opened(sealed, rows[1])
    if rewrapped:
        with pytest.raises(SealBroken):
            asyncio.run(SEALER.rewrap(sealed, associated=rows[1]))


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_parts_of_two_values_do_not_make_a_third(first: bytes, second: bytes) -> None:
    one, other = Envelope.parse(seal(first, "row")), Envelope.parse(seal(second, "row"))
    with pytest.raises(SealBroken):
        opened(Envelope(one.wrapped, other.body).encode(), "row")


def test_it_is_aes_256_gcm_under_a_data_key_of_its_own_that_the_master_key_wraps() -> None:
    """Opened by the cipher itself, without a line of ours."""
    keys = SecretKeys(SECRET)
    data_keys = set()
    for _ in range(2):
        envelope = Envelope.parse(seal(b"a token", "vault:one"))
        data_key = asyncio.run(keys.unwrap(envelope.wrapped, b"vault:one"))
        assert len(data_key) == 32
        assert AESGCM(data_key).decrypt(envelope.body[:12], envelope.body[12:], b"vault:one") == b"a token"
        data_keys.add(data_key)
    assert len(data_keys) == 2


def test_another_master_key_does_not_open() -> None:
    with pytest.raises(UnknownMasterKey):
        opened(seal(b"key", "row"), "row", OTHER)


@given(st.data(), st.booleans())
def test_any_changed_byte_is_noticed(data: st.DataObject, foreign: bool) -> None:
    sealer = Sealer(ForeignKeys(SECRET)) if foreign else SEALER
    sealed = bytearray(seal(b"the key", "row", sealer))
    # The foreign provider of this test ignores its own padding.
    start = len(Envelope.parse(bytes(sealed)).body) + 60 if foreign else len(sealed)
    at = data.draw(st.integers(len(sealed) - start, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealBroken):
        opened(bytes(sealed), "row", sealer)


@given(st.binary(max_size=300))
def test_rubbish_is_refused(rubbish: bytes) -> None:
    for start in (b"", b"\x01", b"\x02"):
        with pytest.raises(SealBroken):
            opened(start + rubbish, "row")


@given(st.integers(0, 200))
def test_what_is_cut_off_is_refused(length: int) -> None:
    for sealer in (SEALER, Sealer(ForeignKeys(SECRET))):
        sealed = seal(b"the key", "row", sealer)
        with pytest.raises(SealBroken):
            opened(sealed[: min(length, len(sealed) - 1)], "row", sealer)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        Sealer.from_secret("short")


def test_a_key_is_not_shown_when_printed() -> None:
    key = MasterKey.derive(SECRET)
    assert key.material.hex() not in repr(key) and str(key.material) not in repr(key)


def test_a_former_secret_opens_and_wraps_nothing() -> None:
    sealed = seal(b"key", "row")
    sealer = Sealer(SecretKeys(OTHER_SECRET, SECRET))
    assert opened(sealed, "row", sealer) == b"key"
    fresh = asyncio.run(sealer.rewrap(sealed, associated="row"))
    assert opened(fresh, "row", OTHER) == b"key" and Envelope.parse(fresh).body == Envelope.parse(sealed).body
    assert fresh.startswith(asyncio.run(sealer.current_prefix()))
    assert not sealed.startswith(asyncio.run(sealer.current_prefix()))


def test_a_secret_of_the_environment_takes_no_version() -> None:
    with pytest.raises(KeyRotationUnavailable, match="MANAGED_AGENTS_FORMER_SECRET_KEY"):
        asyncio.run(SecretKeys(SECRET).add_version())


async def test_a_plain_key_file_becomes_one_with_versions_and_opens_what_it_sealed(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    path.write_text(SECRET + "\n")
    first, second = (Sealer(Keyfile(path, FixedClock())) for _ in range(2))
    old = await first.seal(b"old", associated="row")
    assert await Sealer.from_secret(SECRET).open(old, associated="row") == b"old"

    added = await first.keys.add_version()
    new = await first.seal(b"new", associated="row")

    assert Envelope.parse(new).wrapped.key_id == added != Envelope.parse(old).wrapped.key_id
    assert await second.open(new, associated="row") == b"new", "another process reads the file again"
    assert await second.open(old, associated="row") == await first.open(old, associated="row") == b"old"
    assert Envelope.parse(await second.seal(b"", associated="row")).wrapped.key_id == added
    assert (await second.keys.version_count(), path.stat().st_mode & 0o777) == (2, 0o600)
    assert json.loads(path.read_text())["versions"][0] == {"secret": SECRET}


async def test_versions_that_come_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    path.write_text(SECRET)
    files = [Keyfile(path, FixedClock()) for _ in range(4)]
    added = await asyncio.gather(*(asyncio.to_thread(asyncio.run, file.add_version()) for file in files))
    assert len({*added}) >= 1 and await files[0].version_count() == 5


@pytest.mark.parametrize(
    "content", ["", "short", "{}", "{", '{"format": "managed-agents keyfile 1", "versions": []}', '{"versions": [1]}']
)
def test_a_file_that_holds_no_key_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secret.key"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"secret\.key"):
        Keyfile(path, FixedClock())
    path.unlink()
    with pytest.raises(ConfigError, match="can't be read"):
        Keyfile(path, FixedClock())


async def test_a_file_that_vanishes_or_breaks_leaves_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    path.write_text(SECRET)
    sealer = Sealer(Keyfile(path, FixedClock()))
    sealed = await sealer.seal(b"key", associated="row")
    path.write_text("{ damaged")
    assert await sealer.open(sealed, associated="row") == b"key"
    path.unlink()
    assert await sealer.open(await sealer.seal(b"key", associated="row"), associated="row") == b"key"


async def test_a_folder_that_takes_no_file_refuses_a_version(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    path.write_text(SECRET)
    keys = Keyfile(path, FixedClock())
    (tmp_path / "secret.key.new").mkdir()
    with pytest.raises(KeyRotationUnavailable, match="can't be written"):
        await keys.add_version()
    assert path.read_text() == SECRET and os.listdir(tmp_path)
