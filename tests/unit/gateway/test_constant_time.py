"""A wrong key takes as long to refuse as a nearly right one: digests are compared, in constant time."""

from __future__ import annotations

import hmac

import pytest

from services.gateway.admission.credentials import Authenticator
from services.gateway.errors import InvalidCredential


@pytest.mark.parametrize("wrong", ["x", "the-configured-ke", "the-configured-key2", "y" * 5000])
async def test_keys_are_compared_as_digests_in_constant_time(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare = hmac.compare_digest

    def spy(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    with pytest.raises(InvalidCredential):
        await Authenticator("the-configured-key").authenticate({"authorization": f"Bearer {wrong}"})
    ((one, other),) = compared
    assert len(one) == len(other) == 32
