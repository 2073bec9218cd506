"""When a failed model request is asked again, and what the log says of it. Pure.

A vendor that is busy or out of reach gets further attempts with growing pauses; each pause is drawn from its upper
half, so that many turns that failed together don't return together. A `retry-after` of the vendor is kept to, unless
it is so long that a person is better told now.
"""

from collections.abc import Callable
from dataclasses import dataclass

from services.worker.runner.models.base import ModelAccess, ModelError, ModelErrorKind

_ERROR_TYPES = {
    ModelErrorKind.OVERLOADED: "model_overloaded_error",
    ModelErrorKind.RATE_LIMITED: "model_rate_limited_error",
    ModelErrorKind.BILLING: "billing_error",
    # Only where compacting the context did not help, or could not be done.
    ModelErrorKind.TOO_LONG: "compaction_limit_reached_error",
}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how slowly."""

    attempts: int = 6
    base_seconds: float = 1.0
    cap_seconds: float = 30.0
    longest_retry_after_seconds: float = 120.0

    def delay(self, failures: int, error: ModelError, random: Callable[[], float]) -> float | None:
        """Seconds to wait after the given number of failures in a row; None where no further attempt is made."""
        if not error.retryable or failures >= self.attempts:
            return None
        pause = min(self.cap_seconds, self.base_seconds * 2 ** (failures - 1))
        pause *= 0.5 + random() / 2
        if error.retry_after_seconds is None:
            return pause
        if error.retry_after_seconds > self.longest_retry_after_seconds:
            return None
        return max(pause, error.retry_after_seconds)


_KEY_VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}


def error_message(error: ModelError, access: ModelAccess | None) -> str:
    """What a person is told. A vendor that refuses a key is not quoted: it may repeat the key."""
    if error.kind is not ModelErrorKind.AUTHENTICATION or access is None:
        return error.message
    status = f" (status {error.status})" if error.status else ""
    if not access.api_key:
        told = f"The model vendor {access.vendor} asks for an API key{status}, and none is set."
    elif error.status == 403:
        told = f"The model vendor {access.vendor} does not let the platform's API key do this{status}."
    else:
        told = f"The model vendor {access.vendor} refused the platform's API key{status}."
    named = [name for name in (_KEY_VARIABLES.get(access.vendor), "MANAGED_AGENTS_MODEL_API_KEY") if name]
    return (
        f"{told} The request was not tried again. Set a valid key as {' or '.join(named)} in the platform's"
        " environment and start it again; where the model settings were saved, change model.api_key there."
    )


def error_type(error: ModelError) -> str:
    """The published name of the failure."""
    return _ERROR_TYPES.get(error.kind, "model_request_failed_error")


# What the same request may not meet again.
RETRYABLE = frozenset({"work_queue_timeout"})
# Failures that the same request would meet again. Of any other, nothing is known.
NOT_RETRYABLE = frozenset(
    {
        "loop_engine_not_supported",
        "loop_engine_invalid",
        "unsupported_capability",
        "work_outcome_unknown",
        "work_lease_lost",
        "requires_action_timeout",
        "outcome_evaluator_unavailable",
    }
)


def error_fields(kind: str, message: str, *, asks_again: bool = False) -> dict:
    """The fields of a session.error; `retry_status` follows from the type where the platform doesn't ask again."""
    again = asks_again or kind in RETRYABLE
    retry_status = "retryable" if again else "not_retryable" if kind in NOT_RETRYABLE else "unknown"
    return {
        "error": {"type": kind, "message": message, "retry_status": retry_status},
        "content": [{"type": "text", "text": message}],
    }
