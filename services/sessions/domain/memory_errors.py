"""Refusals on memory stores, memories and their versions."""

from kit.errors import Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, PermissionDenied


class MemoryStoreNotFound(NotFound):
    """The workspace has no such store, or none that is active."""

    reason = "MEMORY_STORE_NOT_FOUND"


class MemoryStoreUnknown(InvalidArgument):
    """A store that a body names does not exist or is archived. It is part of a body, so the answer is a 400."""

    reason = "MEMORY_STORE_NOT_FOUND"


class MemoryNotFound(NotFound):
    """The store has no such memory."""

    reason = "MEMORY_NOT_FOUND"


class MemoryVersionNotFound(NotFound):
    """The store has no such version."""

    reason = "MEMORY_VERSION_NOT_FOUND"


class MemoryStoreArchived(FailedPrecondition):
    """The store can be read, and nothing more."""

    reason = "MEMORY_STORE_ARCHIVED"


class InvalidMemoryPath(InvalidArgument):
    """No memory can be at this path."""

    reason = "INVALID_MEMORY_PATH"


class MemoryPathConflict(AlreadyExists):
    """Another memory is at this path."""

    reason = "MEMORY_PATH_CONFLICT"


class MemoryPreconditionFailed(Aborted):
    """The stored text is not the one that the caller read."""

    reason = "PRECONDITION_FAILED"


class InvalidPrecondition(InvalidArgument):
    """The precondition says nothing that could be checked."""

    reason = "INVALID_PRECONDITION"


class MemoryTooLarge(InvalidArgument):
    """The text is longer than a memory may be."""

    reason = "MEMORY_TOO_LARGE"


class MemoryStoreFull(FailedPrecondition):
    """The store holds as many memories as it may."""

    reason = "MEMORY_STORE_FULL"


class MemoryVersionIsHead(FailedPrecondition):
    """The version is what a live memory has now."""

    reason = "MEMORY_VERSION_IS_HEAD"


class MemoryStoreNotAttached(PermissionDenied):
    """The session does not hold the store, or only for reading."""

    reason = "MEMORY_STORE_NOT_ATTACHED"
