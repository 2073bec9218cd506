"""The key that a request came with, for those who have to do with it after it was let in."""

import pytest

from services.gateway.admission.credentials import presented


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, ""),
        ({"x-api-key": "ma_1"}, "ma_1"),
        ({"authorization": "Bearer ma_1"}, "ma_1"),
        # As shells send it whose variable is empty; while nobody needs a key it is let in everywhere.
        ({"authorization": "Bearer "}, ""),
        ({"authorization": "Basic bWE6eA=="}, ""),
    ],
)
def test_what_is_no_key_is_none(headers: dict[str, str], key: str) -> None:
    assert presented(headers) == key
