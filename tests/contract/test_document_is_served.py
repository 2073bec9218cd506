"""What the OpenAPI document says is what is served: thousands of made-up requests, no fault of ours.

Requests are generated from the document of a running platform, valid and invalid ones.
None may answer 5xx, nor with a status, a content type or a body that the document
doesn't show; and no line of any service's log may tell of an unexpected fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.platform import Platform, running_platform

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
REQUEST_SECONDS = 15
EXAMPLES_EACH = 6
KEY = "ma_configured_key_of_the_document"
# Some of the requests make and delete keys: this one stays, whatever becomes of those.
ENVIRONMENT = {"MANAGED_AGENTS_API_KEY": KEY, "MANAGED_AGENTS_INBOUND_RATE_LIMIT": "off"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform of its own, which needs a key."""
    with running_platform(tmp_path_factory.mktemp("document") / "data", environment=ENVIRONMENT) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_made_up_requests_get_documented_answers(guarded: Platform) -> None:
    document = schemathesis.openapi.from_url(f"{guarded.url}/openapi.json")
    failures = []
    for loaded in document.get_all_operations():
        operation = loaded.ok()
        # A stream has no end to wait for; streams have tests of their own.
        if operation.path.endswith("/stream"):
            continue
        for mode in GenerationMode:
            try:
                _try_out(operation, mode)
            except Unsatisfiable:
                # Nothing about this operation can be wrong: it takes no input.
                assert mode is GenerationMode.NEGATIVE
            except Exception as failure:
                failures.append(f"{operation.label} ({mode.name}): {failure}")
    assert not failures, "\n\n".join(failures)


def _try_out(operation: APIOperation, mode: GenerationMode) -> None:
    @settings(
        max_examples=EXAMPLES_EACH,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def try_one(case: Case) -> None:
        if isinstance(case.body, dict) and case.body.get("stream"):
            case.body["stream"] = False
        if isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int):
            # A claim may be held for half a minute; how long has tests of its own.
            case.body["wait_ms"] = min(case.body["wait_ms"], 50)
        # One credential, and the right one: what others are answered has tests of its own.
        for name in [name for name in case.headers if name.lower() in ("x-api-key", "authorization")]:
            del case.headers[name]
        headers = {"authorization": f"Bearer {KEY}"}
        case.call_and_validate(checks=CHECKS, headers=headers, timeout=REQUEST_SECONDS)

    try_one()


def test_no_request_so_far_was_an_unexpected_fault(platform: Platform, guarded: Platform) -> None:
    faults = []
    for line in filter(None, (platform.logs() + "\n" + guarded.logs()).splitlines()):
        try:
            entry = json.loads(line)
        except ValueError:
            faults.append(line)
            continue
        if entry.get("level") in ("error", "critical"):
            faults.append(line[:2000])
    assert not faults
