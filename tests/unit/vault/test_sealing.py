"""Sealed values open for their own row with their own key, and for nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.vault.domain.errors import SealBroken
from services.vault.domain.sealing import Sealer

SEALER = Sealer.from_secret("a secret of enough length")
OTHER = Sealer.from_secret("another secret of enough length")


@given(st.binary(max_size=4096), st.text(max_size=64))
def test_what_is_sealed_opens_again(plaintext: bytes, row: str) -> None:
    assert SEALER.open(SEALER.seal(plaintext, associated=row), associated=row) == plaintext


@given(st.binary(min_size=8, max_size=64))
def test_a_sealed_value_shows_nothing_of_the_plaintext_and_never_repeats(plaintext: bytes) -> None:
    first, second = SEALER.seal(plaintext, associated="row"), SEALER.seal(plaintext, associated="row")
    assert first != second
    assert plaintext not in first


def test_a_value_moved_to_another_row_does_not_open() -> None:
    with pytest.raises(SealBroken):
        SEALER.open(SEALER.seal(b"key", associated="settings:a"), associated="settings:b")


def test_another_master_key_does_not_open() -> None:
    with pytest.raises(SealBroken):
        OTHER.open(SEALER.seal(b"key", associated="row"), associated="row")


@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    sealed = bytearray(SEALER.seal(b"the key", associated="row"))
    at = data.draw(st.integers(0, len(sealed) - 1))
    is_key_id = 1 <= at < 9
    sealed[at] ^= data.draw(st.integers(1, 255))
    if is_key_id:
        return
    with pytest.raises(SealBroken):
        SEALER.open(bytes(sealed), associated="row")


@given(st.binary(max_size=100))
def test_rubbish_is_refused(rubbish: bytes) -> None:
    with pytest.raises(SealBroken):
        SEALER.open(rubbish, associated="row")


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        Sealer.from_secret("short")


def test_a_sealer_shows_no_key_when_printed() -> None:
    assert SEALER.master_key.hex() not in repr(SEALER) and str(SEALER.master_key) not in repr(SEALER)
