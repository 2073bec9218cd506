"""What can go wrong with a repository, by the published names."""

AUTHENTICATION = "repository_authentication_error"
FORBIDDEN = "repository_forbidden_error"
NOT_FOUND = "repository_not_found_error"
CHECKOUT = "repository_checkout_error"
CLONE = "repository_clone_error"

_BY_STATUS = {401: AUTHENTICATION, 403: FORBIDDEN, 404: NOT_FOUND}
_TOLD = {
    AUTHENTICATION: "The host of the repository did not accept the token, or needs one and was given none.",
    FORBIDDEN: "The token does not allow to read the repository.",
    NOT_FOUND: "There is no such repository, or the token does not show it.",
}


class RepositoryFailed(Exception):
    """A repository could not be had. `transient` failures are worth another try at once."""

    def __init__(self, kind: str, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.transient = transient


def of_status(status: int) -> RepositoryFailed:
    """The failure that an answer of the repository's host stands for."""
    kind = _BY_STATUS.get(status, CLONE)
    told = _TOLD.get(kind, f"The host of the repository answered with status {status}.")
    return RepositoryFailed(kind, told, transient=kind == CLONE and (status >= 500 or status == 429))
