"""Errors: every canonical code and every reason has its one form over HTTP, in both vocabularies."""

from __future__ import annotations

import json

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from kit.errors import CANONICAL, DomainError, InvalidArgument, Unavailable, rebuild
from kit.rpc.status import DETAILS_KEY, pack, unpack
from managed_agents.errors.v1.reason_pb2 import ErrorReason
from services.gateway.errors import ErrorAnswer, RequestTooLarge, describe

TABLE = {
    "INVALID_ARGUMENT": (400, "invalid_request_error", "invalid_request_error"),
    "FAILED_PRECONDITION": (400, "invalid_request_error", "invalid_request_error"),
    "OUT_OF_RANGE": (400, "invalid_request_error", "invalid_request_error"),
    "UNAUTHENTICATED": (401, "authentication_error", "authentication_error"),
    "PERMISSION_DENIED": (403, "permission_error", "permission_error"),
    "NOT_FOUND": (404, "not_found", "not_found_error"),
    "ALREADY_EXISTS": (409, "conflict", "invalid_request_error"),
    "ABORTED": (409, "conflict", "invalid_request_error"),
    "RESOURCE_EXHAUSTED": (429, "rate_limit_error", "rate_limit_error"),
    "UNIMPLEMENTED": (501, "not_available", "api_error"),
    "UNAVAILABLE": (503, "not_available", "overloaded_error"),
    "DEADLINE_EXCEEDED": (504, "timeout_error", "timeout_error"),
    "INTERNAL": (500, "internal_error", "api_error"),
}
FAILING_CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
# What only the transport says; any other code without our details is a fault of ours.
BARE = {"UNAVAILABLE": 503, "CANCELLED": 503, "DEADLINE_EXCEEDED": 504}
REASONS = [value.name for value in ErrorReason.DESCRIPTOR.values if value.number]


def answers(error: BaseException) -> tuple[ErrorAnswer, ErrorAnswer]:
    local, published = (describe(error, published=flag, request_id="req_1") for flag in (False, True))
    assert (local.status, local.code, local.message) == (published.status, published.code, published.message)
    return local, published


@pytest.mark.parametrize("code", FAILING_CODES, ids=lambda code: code.name)
def test_every_grpc_code_as_the_transport_sends_it(code: grpc.StatusCode) -> None:
    local, _ = answers(unpack(AioRpcError(code, Metadata(), Metadata(), details="secret text")))
    assert local.status == BARE.get(code.name, 500)
    assert "secret" not in local.message


def test_the_table_covers_every_canonical_code() -> None:
    assert set(TABLE) == set(CANONICAL)


@pytest.mark.parametrize("code", sorted(CANONICAL))
def test_every_canonical_code_with_a_reason(code: str) -> None:
    raised = rebuild(code, reason="AGENT_NOT_FOUND", message="No such agent.")
    status, text, details = pack(raised, "sessions")
    trailing = Metadata((DETAILS_KEY, details))
    local, published = answers(unpack(AioRpcError(status, Metadata(), trailing, details=text)))
    assert (local.status, local.type, published.type) == TABLE[code]
    assert local.code == ("internal" if code == "INTERNAL" else "agent_not_found")


OWN_STATUS = {
    "METHOD_NOT_ALLOWED": 405,
    "REQUEST_TOO_LARGE": 413,
    "FILE_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "FILE_RANGE_NOT_SATISFIABLE": 416,
    "MEMORY_PATH_CONFLICT": 409,
    "PRECONDITION_FAILED": 409,
    "HEARTBEAT_PRECONDITION_FAILED": 412,
    "STEP_TURN_FAILED": 502,
}


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_reaches_the_caller_as_its_code(reason: str) -> None:
    short = reason.removeprefix("ERROR_REASON_")
    local, _ = answers(rebuild("INVALID_ARGUMENT", reason=short, message="A sentence."))
    # Of work that another worker holds the requirements want a conflict without a code.
    assert local.code == ("" if short == "WORK_ITEM_HELD" else short.lower())
    assert local.status == OWN_STATUS.get(short, 400)
    assert local.message == "A sentence."


def test_a_fault_of_ours_is_masked() -> None:
    for error in (ValueError("password=hunter2"), rebuild("INTERNAL", reason="SEAL_BROKEN", message="key of vlt_1")):
        local, _ = answers(error)
        body = local.body("req_1").decode()
        assert local.status == 500
        assert "hunter2" not in body and "vlt_1" not in body
        assert json.loads(body)["request_id"] == "req_1"


def test_the_envelope() -> None:
    error = RequestTooLarge("Too large.", details='{"most": 10}')
    local, _ = answers(error)
    assert json.loads(local.body("req_1")) == {
        "type": "error",
        "error": {
            "type": "request_too_large",
            "message": "Too large.",
            "code": "request_too_large",
            "details": {"most": 10},
        },
        "request_id": "req_1",
    }


@pytest.mark.parametrize(
    ("error", "header"),
    [
        (rebuild("ABORTED", reason="AGENT_VERSION_CONFLICT", message="m"), ("x-should-retry", "false")),
        (rebuild("ALREADY_EXISTS", reason="IDEMPOTENCY_KEY_REUSED", message="m"), ("x-should-retry", "false")),
        (Unavailable("m", retry_after_seconds=2.2), ("retry-after", "3")),
        (rebuild("RESOURCE_EXHAUSTED", reason="INBOUND_RATE_LIMITED", message="m"), ("retry-after", "1")),
    ],
)
def test_headers_that_steer_a_retry(error: DomainError, header: tuple[str, str]) -> None:
    assert header in answers(error)[0].headers


def test_a_conflict_that_may_succeed_later_can_be_retried() -> None:
    error = rebuild("ABORTED", reason="WRITE_CONFLICT", message="m")
    assert answers(error)[0].headers == ()


def test_details_that_are_no_json_are_still_shown() -> None:
    assert answers(InvalidArgument("m", details="{broken"))[0].details == {"text": "{broken"}


def test_a_conflict_with_a_living_holder_has_no_code() -> None:
    local, _ = answers(rebuild("ABORTED", reason="WORK_ITEM_HELD", message="Another worker holds it."))
    assert (local.status, "code" in json.loads(local.body("req_1"))["error"]) == (409, False)
