"""Refusals about API keys and worker keys."""

from kit.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unauthenticated


class ApiKeyNotFound(NotFound):
    """No such API key in this workspace."""

    reason = "API_KEY_NOT_FOUND"


class WorkerKeyNotFound(NotFound):
    """No such worker key in this environment."""

    reason = "WORKER_KEY_NOT_FOUND"


class InvalidApiKey(InvalidArgument):
    """A key's name, role, owner or workspace is malformed."""

    reason = "INVALID_API_KEY"


class InvalidWorkerKey(InvalidArgument):
    """A worker key's name, expiry or metadata is malformed."""

    reason = "INVALID_WORKER_KEY"


class FirstKeyMustBeAdmin(FailedPrecondition):
    """With this key alone nobody could manage keys."""

    reason = "FIRST_KEY_MUST_BE_ADMIN"


class LastAdminKey(FailedPrecondition):
    """Without this key nobody could manage those that are left."""

    reason = "LAST_ADMIN_KEY"


class TooManyKeys(FailedPrecondition):
    """There are as many keys as there may be."""

    reason = "TOO_MANY_KEYS"


class AdministratorsOnly(PermissionDenied):
    """The caller may not manage these keys."""

    reason = "PERMISSION_DENIED"


class KeyNeeded(Unauthenticated):
    """The caller came without a key, and by now there is one."""

    reason = "INVALID_CREDENTIAL"
