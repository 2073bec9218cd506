"""Each canonical code has one class; a refusal keeps what it carries; every reason of kit is in the enum."""

import copy
import pickle

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.status_pb2 import Status

from kit import errors, pages
from kit.errors import NotFound, Unavailable, rebuild
from kit.rpc.client import time_for
from kit.rpc.context import CallContext, context_or_none, current_context, use_context
from kit.rpc.status import DETAILS_KEY, INTERNAL_TEXT, pack, unpack
from managed_agents.errors.v1.reason_pb2 import ErrorReason


class ThingNotFound(NotFound):
    reason = "AGENT_NOT_FOUND"


def failed(code: grpc.StatusCode, *details: tuple[str, bytes], text: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*details), text)


def test_there_is_one_class_for_each_code_but_those_that_nobody_raises():
    codes = {code.name for code in grpc.StatusCode} - {"OK", "CANCELLED", "UNKNOWN", "DATA_LOSS"}
    assert set(errors.CANONICAL) == codes


def test_every_reason_of_kit_is_in_the_enum():
    assert pages.InvalidCursor.reason in errors.reasons_in_use()
    ours = {reason for reason, name in errors.reasons_in_use().items() if name.startswith("kit.")}
    assert ours <= {name.removeprefix("ERROR_REASON_") for name, _number in ErrorReason.items()}


def test_a_class_without_a_reason_can_not_be_raised():
    with pytest.raises(TypeError, match="reason"):
        NotFound("nothing here")


def test_metadata_is_text_and_nothing_is_left_out_silently_but_none():
    error = ThingNotFound("gone", field="id", agent_id="a", version=3, absent=None)
    assert error.metadata == {"agent_id": "a", "version": "3"}
    assert (str(error), error.message, error.field) == ("gone", "gone", "id")


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_can_be_copied(twin):
    for error in (ThingNotFound("gone", field="id", a="b"), rebuild("NOT_FOUND", reason="X", message="m")):
        other = twin(error)
        assert (type(other), other.reason, str(other)) == (type(error), error.reason, str(error))
        assert other.__dict__ == error.__dict__


def test_unavailable_always_says_when_to_come_back():
    assert Unavailable("later").retry_after_seconds == 1.0
    assert Unavailable("later", retry_after_seconds=7).retry_after_seconds == 7


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.CANCELLED, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.UNKNOWN, errors.Internal),
        (grpc.StatusCode.UNIMPLEMENTED, errors.Internal),
        (grpc.StatusCode.NOT_FOUND, errors.Internal),
    ],
)
@pytest.mark.parametrize("encoded", [None, b"\xff\xff", Status(code=5).SerializeToString()])
def test_a_failure_without_our_details_is_told_by_its_code(code, kind, encoded):
    details = [(DETAILS_KEY, encoded)] if encoded is not None else []
    error = unpack(failed(code, *details, text="socket closed at /secret/path"))
    assert type(error) is kind
    assert "secret" not in error.message


def test_unknown_details_are_passed_over():
    _, _, encoded = pack(ThingNotFound("gone"), "sessions")
    status = Status.FromString(encoded)
    status.details.insert(0, AnyMessage(type_url="type.googleapis.com/unknown.Thing", value=b"\x01"))
    error = unpack(failed(grpc.StatusCode.NOT_FOUND, (DETAILS_KEY, status.SerializeToString())))
    assert (type(error), error.reason) == (NotFound, "AGENT_NOT_FOUND")
    assert error.retry_after_seconds is None


def test_what_has_no_details_says_nothing_of_the_inside():
    assert unpack(failed(grpc.StatusCode.INTERNAL)).message == INTERNAL_TEXT


def test_a_nested_call_gets_what_is_left_less_the_reserve():
    import time

    assert time_for(None, 15) == 15
    assert time_for(CallContext(), None) is None
    context = CallContext(deadline=time.monotonic() + 10)
    assert 9.5 < time_for(context, 15) < 9.96
    assert time_for(context, 2) == 2
    assert 9.5 < time_for(context, None) < 9.96
    for left in (0.09, -5.0):
        with pytest.raises(errors.DeadlineExceeded):
            time_for(CallContext(deadline=time.monotonic() + left), 15)


def test_a_context_is_bound_to_its_block():
    assert context_or_none() is None
    with pytest.raises(LookupError):
        current_context()
    outer = CallContext("wrkspc_a", "req_1", "key_1", True)
    with use_context(outer):
        assert current_context() is outer
        with use_context(outer.for_workspace("wrkspc_b")) as inner:
            assert current_context() is inner
            assert (inner.workspace_id, inner.request_id) == ("wrkspc_b", "req_1")
            assert inner.wire != outer.wire
        assert current_context() is outer
    assert context_or_none() is None
