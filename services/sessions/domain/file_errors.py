"""Refusals on files and artifacts; each class stands for one reason of `managed_agents.errors.v1`."""

import json
from typing import Any

from kit.errors import FailedPrecondition, InvalidArgument, NotFound, OutOfRange


class InvalidFile(InvalidArgument):
    """Something that an upload says of itself is malformed, or its bytes are others than it says."""

    reason = "INVALID_FILE"


class FileTooLarge(InvalidArgument):
    """More bytes than are taken."""

    reason = "FILE_TOO_LARGE"


class InvalidArtifactPath(InvalidArgument):
    """The path is not one under /artifacts/."""

    reason = "INVALID_ARTIFACT_PATH"


class FileNotFound(NotFound):
    """The workspace has no such file, or it was archived."""

    reason = "FILE_NOT_FOUND"


class ArtifactNotFound(NotFound):
    """The session has no such artifact."""

    reason = "ARTIFACT_NOT_FOUND"


class FileRangeNotSatisfiable(OutOfRange):
    """The range begins behind the end; `size` tells where that is."""

    reason = "FILE_RANGE_NOT_SATISFIABLE"


class FileExpired(NotFound):
    """Its time is over, and its bytes are gone."""

    reason = "FILE_EXPIRED"

    def __init__(self, message: str, **metadata: Any) -> None:
        super().__init__(message, details=_details("file_expired"), **metadata)


class FileNotDownloadable(FailedPrecondition):
    """Only sessions read its bytes."""

    reason = "FILE_NOT_DOWNLOADABLE"

    def __init__(self, message: str, **metadata: Any) -> None:
        super().__init__(message, details=_details("file_not_downloadable"), **metadata)


class StorageQuotaExceeded(FailedPrecondition):
    """The workspace keeps as many bytes as it may."""

    reason = "STORAGE_QUOTA_EXCEEDED"

    def __init__(self, message: str, **metadata: Any) -> None:
        super().__init__(message, details=_details("storage_quota_exceeded"), **metadata)


def _details(error_code: str) -> str:
    return json.dumps({"error_code": error_code})
