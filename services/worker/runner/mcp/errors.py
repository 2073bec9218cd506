"""What can go wrong with a server, as far as callers must tell it apart. Messages may reach the log and the model."""

CONNECTION_FAILED = "mcp_connection_failed_error"
AUTHENTICATION_FAILED = "mcp_authentication_failed_error"


class ServerFailed(Exception):
    """The server can't be used now. `kind` is the published type of the error that tells of it."""

    def __init__(self, message: str, kind: str = CONNECTION_FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind


class NotDelivered(Exception):
    """The call did not reach the server, so another connection may try it."""


class OutcomeUnknown(Exception):
    """The call reached the server, or may have, and no answer came."""


class CallRefused(Exception):
    """The server answered that it does not do this."""
