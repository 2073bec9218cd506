"""The metadata of a work item: merged key by key, within its limits."""

from __future__ import annotations

import json

import pytest

from services.worker.queue.domain.session_errors import InvalidWorkMetadata
from services.worker.queue.domain.work_metadata import merged


def test_a_patch_sets_and_removes() -> None:
    assert json.loads(merged('{"a":"1","b":"2"}', b'{"a":null,"c":"3"}')) == {"b": "2", "c": "3"}
    assert json.loads(merged('{"a":"1"}', b"{}")) == {"a": "1"}


@pytest.mark.parametrize(
    "patch",
    [b"[]", b"nonsense", b'{"a":1}', b'{"":"x"}', b'{"a":"\\u0000"}']
    + [json.dumps(each).encode() for each in ({"k" * 65: "x"}, {"a": "x" * 513}, {f"k{n}": "x" for n in range(17)})],
)
def test_what_breaks_a_limit_is_refused(patch: bytes) -> None:
    with pytest.raises(InvalidWorkMetadata) as refused:
        merged("{}", patch)
    assert json.loads(refused.value.metadata["details"]) == {"error_code": "invalid_metadata"}


def test_a_full_bag_swaps_one_pair_for_another() -> None:
    full = json.dumps({f"k{n}": "x" for n in range(16)})
    assert len(json.loads(merged(full, b'{"k0":null,"new":"y"}'))) == 16
