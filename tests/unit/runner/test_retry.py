"""Which vendor failures are asked again, and after how long."""

import pytest

from services.worker.runner.loop.retry import NOT_RETRYABLE, RetryPolicy, error_fields, error_type
from services.worker.runner.models.base import ModelError, ModelErrorKind, error_from_status

POLICY = RetryPolicy(attempts=4, base_seconds=1.0, cap_seconds=5.0, longest_retry_after_seconds=60)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_passing_faults_are_worth_another_attempt(status: int) -> None:
    assert error_from_status(status, "x").retryable


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_lasting_faults_are_not(status: int) -> None:
    assert POLICY.delay(1, error_from_status(status, "x"), lambda: 0.0) is None


def test_pauses_grow_up_to_a_cap_and_end() -> None:
    error = error_from_status(529, "busy")
    longest = [POLICY.delay(failures, error, lambda: 1.0) for failures in (1, 2, 3, 4)]
    assert longest == [1.0, 2.0, 4.0, None]
    assert POLICY.delay(2, error, lambda: 0.0) == 1.0
    assert RetryPolicy(attempts=9, cap_seconds=5.0).delay(8, error, lambda: 1.0) == 5.0


def test_the_vendor_may_ask_for_more_time_but_not_for_ever() -> None:
    def delay(seconds: float) -> float | None:
        return POLICY.delay(1, error_from_status(429, "x", retry_after_seconds=seconds), lambda: 1.0)

    assert delay(7.5) == 7.5
    assert delay(0.1) == 1.0
    assert delay(3600) is None


def test_published_names_are_used_where_one_fits() -> None:
    assert error_type(error_from_status(529, "x")) == "model_overloaded_error"
    assert error_type(error_from_status(429, "x")) == "model_rate_limited_error"
    assert error_type(ModelError(ModelErrorKind.BILLING, "x")) == "billing_error"
    assert error_type(ModelError(ModelErrorKind.CONNECTION, "x")) == "model_request_failed_error"


def test_the_retry_status_of_an_error_follows_from_its_type() -> None:
    for kind in NOT_RETRYABLE:
        assert error_fields(kind, "x")["error"]["retry_status"] == "not_retryable"
    assert error_fields("work_queue_timeout", "x")["error"]["retry_status"] == "retryable"
    for kind in ("internal_error", "model_request_failed_error", "model_overloaded_error", "anything_new"):
        assert error_fields(kind, "401 unauthorized")["error"]["retry_status"] == "unknown"
        assert error_fields(kind, "x", asks_again=True)["error"]["retry_status"] == "retryable"
    told = error_fields("model_request_failed_error", "401 unauthorized")
    assert told["content"] == [{"type": "text", "text": "401 unauthorized"}] and told["error"]["message"]
