"""Errors on the wire: DomainError ⇄ google.rpc.Status.

The status carries ErrorInfo (reason, domain = service, metadata), BadRequest where a field is at fault, and RetryInfo
where a delay is known. It travels in the trailing metadata `grpc-status-details-bin`, which every gRPC library reads.
A failure that is no DomainError leaves as INTERNAL with a fixed text; the log has the rest, under the request id.
"""

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from kit.errors import CANONICAL, DeadlineExceeded, DomainError, Internal, Unavailable, rebuild
from kit.telemetry import log

DETAILS_KEY = "grpc-status-details-bin"
TOO_SLOW_TEXT = "The platform took longer than the time that was left for this request."
INTERNAL_TEXT = "Something failed inside the platform. The request id names the entry in its log."

# Trailers are limited (METADATA_BYTES in the channel options); a longer text says nothing more.
_LONGEST_MESSAGE = 4_000
_LARGEST_METADATA = 24_000
# How gRPC tells of a connection that broke, besides UNAVAILABLE: a write that met it first ends the call with INTERNAL.
_LOST_CONNECTION = ("Internal error from Core", "Stream removed", "Received RST_STREAM")
_CODES = {code: grpc.StatusCode[code] for code in CANONICAL}
_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def pack(error: DomainError, service: str) -> tuple[grpc.StatusCode, str, bytes]:
    """Code, message and encoded Status of a refusal."""
    code = _CODES[error.code]
    message = error.message[:_LONGEST_MESSAGE]
    status = Status(code=code.value[0], message=message)
    info = ErrorInfo(reason=error.reason, domain=service)
    room = _LARGEST_METADATA
    for key, value in error.metadata.items():
        room -= len(key) + len(value.encode())
        if room >= 0:
            info.metadata[key] = value
    _add(status, info)
    if error.field is not None:
        _add(status, BadRequest(field_violations=[BadRequest.FieldViolation(field=error.field, description=message)]))
    if error.retry_after_seconds is not None:
        _add(status, RetryInfo(retry_delay=_duration(error.retry_after_seconds)))
    return code, message, status.SerializeToString()


def report(error: Exception, method: str, service: str) -> tuple[grpc.StatusCode, str, bytes]:
    """What a failed handler is answered with; a failure of our own goes to the log, and leaves masked."""
    if not isinstance(error, DomainError):
        log.error("call failed", method=method, exc_info=error)
        return grpc.StatusCode.INTERNAL, INTERNAL_TEXT, b""
    if error.code == "INTERNAL":
        log.error("call failed", method=method, reason=error.reason, exc_info=error)
    return pack(error, service)


def unpack(failed: grpc.aio.AioRpcError) -> DomainError:
    """The refusal behind a failed call: what the service raised, or what became of the connection."""
    for key, value in failed.trailing_metadata() or ():
        if key == DETAILS_KEY:
            error = _from_status(failed.code(), value)
            if error is not None:
                return error
    return _without_details(failed.code(), failed.details() or "")


def rebuilt(number: int, encoded: bytes, details: str) -> DomainError:
    """The refusal behind a code and the Status that came with it, if one did."""
    code = _BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN)
    return (_from_status(code, encoded) if encoded else None) or _without_details(code, details)


def _from_status(code: grpc.StatusCode, encoded: bytes | str) -> DomainError | None:
    try:
        status = Status.FromString(encoded if isinstance(encoded, bytes) else encoded.encode("latin-1"))
    except DecodeError:
        return None
    info, violation, retry = ErrorInfo(), BadRequest(), RetryInfo()
    for detail in status.details:
        for target in (info, violation, retry):
            # Unpacks only what is of this type.
            detail.Unpack(target)
    if not info.reason:
        return None
    return rebuild(
        code.name,
        reason=info.reason,
        message=status.message,
        metadata=dict(info.metadata),
        field=violation.field_violations[0].field if violation.field_violations else None,
        retry_after_seconds=retry.retry_delay.ToTimedelta().total_seconds() if retry.HasField("retry_delay") else None,
    )


def _without_details(code: grpc.StatusCode, details: str) -> DomainError:
    """A failure that no handler of ours made: the transport's, or a deadline."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(TOO_SLOW_TEXT)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) or details.startswith(_LOST_CONNECTION):
        return Unavailable("A part of the platform can't be reached now. Try again shortly.")
    return Internal(INTERNAL_TEXT, grpc_code=code.name, grpc_details=details[:500])


def _add(status: Status, detail: ErrorInfo | BadRequest | RetryInfo) -> None:
    packed = AnyMessage()
    packed.Pack(detail)
    status.details.append(packed)


def _duration(seconds: float) -> Duration:
    nanos = round(seconds * 1_000_000_000)
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)
