"""What can keep an embedded server from running, in words for the person at the terminal."""


class EmbeddedServerError(Exception):
    """An embedded server can't be started; the message says why and what to do."""
