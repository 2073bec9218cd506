"""What can go wrong between a worker and its platform, told apart by what is to be done about it."""


class OptionUnusable(Exception):
    """An option can't be worked with; the text names it and says what is accepted."""


class Refused(Exception):
    """The platform has answered, and the answer is no: asking again would change nothing."""

    def __init__(self, status: int, code: str, message: str, details: dict[str, object] | None = None) -> None:
        self.status = status
        self.code = code
        self.message = message
        self.details = details or {}
        super().__init__(f"{message} ({status}{f', {code}' if code else ''})")


class Unreachable(Exception):
    """No answer that says anything: the network, a proxy, or a platform that is starting or busy. Worth another try."""

    def __init__(self, reason: str, *, retry_after_seconds: float = 0.0) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(reason)


class AccessRefused(Exception):
    """The key, the environment or the address is wrong; a worker that goes on would be refused for ever."""

    @classmethod
    def of(cls, refused: Refused) -> "AccessRefused":
        """A refusal with what is to be done about it."""
        if refused.status != 401:
            return cls(refused.message)
        return cls(
            f"{refused.message.rstrip('.')}. A worker comes with the key of its environment, in "
            "MANAGED_AGENTS_ENVIRONMENT_KEY or in the file of --key-file; an administrator makes one with "
            "POST /v1/environments/ENV_ID/worker-keys"
        )
