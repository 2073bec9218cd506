"""What the loop and a model vendor say to each other.

The loop hands a ModelRequest to a provider and reads ModelDeltas until Stop. A provider keeps nothing between requests
but connections, makes no attempt of its own a second time (the loop does, visibly), and raises ModelError for whatever
goes wrong with the vendor.

Content blocks are plain JSON objects in the published shapes: `text`, `image`, `document`, `search_result` from users
and tools, `tool_use` from the model, `tool_result` in answer. They are shared between requests: never change one.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from kit.redaction import mask_text

# The tool by which a grader gives its verdict on an outcome.
VERDICT_TOOL = "record_outcome_verdict"
Block = Mapping[str, Any]
Role = Literal["user", "assistant", "system"]


class Message:
    """One message of the context. Immutable but for `rendered`, where a provider may keep its own form of it.

    `user` and `assistant` alternate; `system` messages stand between them as turns of their own. A `tool_use` block is
    answered in the next user message, by `tool_result` blocks that come before its other blocks. `reasoning` holds the
    vendor's opaque reasoning blocks of an assistant message, as long as this process still has them.
    """

    __slots__ = ("content", "reasoning", "rendered", "role", "size")

    def __init__(self, role: Role, content: Sequence[Block], reasoning: Sequence[Block] = ()) -> None:
        self.role: Role = role
        self.content: tuple[Block, ...] = tuple(content)
        self.reasoning: tuple[Block, ...] = tuple(reasoning)
        self.rendered: dict[str, Any] = {}
        self.size = sum(map(block_chars, self.content))

    def __repr__(self) -> str:
        return f"Message({self.role!r}, {list(self.content)!r})"


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as the model sees it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    # Whether a worker that serves the session runs it, see `outside/sessions.py`.
    by_worker: bool = False


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request to a model."""

    model_id: str
    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolDefinition] = ()
    # None leaves it to the provider, which knows the model's own limit.
    max_tokens: int | None = None
    # `standard`, `fast` or `extended`; a vendor that knows no such thing ignores it.
    speed: str = "standard"
    # A stable key for the vendor's prompt cache: the session's id.
    cache_key: str = ""


class StopReason(StrEnum):
    """Why a model stopped."""

    END_TURN = "end_turn"
    TOOL_USE = "tool_use"
    MAX_TOKENS = "max_tokens"
    REFUSAL = "refusal"


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """What a request cost, as the vendor counts it. `input_tokens` excludes cache reads and writes."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_5m_input_tokens: int = 0
    cache_creation_1h_input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text. Pieces of one answer are joined without anything between them."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingStart:
    """The model began to reason."""


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of reasoning; never stored, only a sign of life."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingEnd:
    """The model ended a block of reasoning. `opaque` comes back in Message.reasoning with the next request."""

    opaque: Block | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call. Where the model's arguments are no JSON object, `input` is empty and `input_error` says why."""

    id: str
    name: str
    input: dict[str, Any]
    input_error: str | None = None


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The usage so far; the last report of a request counts. It may come before or after Stop, or more than once."""

    usage: TokenUsage


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of the answer. Exactly one ends a request that did not fail."""

    reason: StopReason
    # What the vendor says of a refusal: `{category?, explanation?}`.
    details: Mapping[str, Any] | None = None
    # The model that answered, where the vendor tells; else the one that was asked.
    model_id: str | None = None


ModelDelta = TextDelta | ThinkingStart | ThinkingDelta | ThinkingEnd | ToolCall | UsageReport | Stop


class ModelErrorKind(StrEnum):
    """What went wrong with the vendor, as far as the loop must tell it apart."""

    OVERLOADED = "overloaded"
    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    SERVER = "server"
    AUTHENTICATION = "authentication"
    BILLING = "billing"
    NOT_FOUND = "not_found"
    INVALID_REQUEST = "invalid_request"
    # The context is longer than the model takes.
    TOO_LONG = "too_long"
    UNKNOWN = "unknown"


class ModelError(Exception):
    """The vendor did not answer as asked. `message` reaches the session's log: a key that it quotes is masked."""

    def __init__(
        self,
        kind: ModelErrorKind,
        message: str,
        *,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        retryable: bool | None = None,
    ) -> None:
        self.message = mask_text(message)
        super().__init__(self.message)
        self.kind = kind
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.retryable = kind in _RETRYABLE if retryable is None else retryable


_RETRYABLE = frozenset(
    (
        ModelErrorKind.OVERLOADED,
        ModelErrorKind.RATE_LIMITED,
        ModelErrorKind.TIMEOUT,
        ModelErrorKind.CONNECTION,
        ModelErrorKind.SERVER,
    )
)


def error_from_status(status: int, message: str, *, retry_after_seconds: float | None = None) -> ModelError:
    """The error that an HTTP status of a vendor stands for. 408, 409, 429 and 5xx are worth another attempt."""
    if status == 429:
        kind = ModelErrorKind.RATE_LIMITED
    elif status in (503, 529):
        kind = ModelErrorKind.OVERLOADED
    elif status in (408, 504):
        kind = ModelErrorKind.TIMEOUT
    elif status == 409 or status >= 500:
        kind = ModelErrorKind.SERVER
    elif status in (401, 403):
        kind = ModelErrorKind.AUTHENTICATION
    elif status == 402:
        kind = ModelErrorKind.BILLING
    elif status == 404:
        kind = ModelErrorKind.NOT_FOUND
    elif status == 413:
        kind = ModelErrorKind.TOO_LONG
    else:
        kind = ModelErrorKind.INVALID_REQUEST
    return ModelError(kind, message, status=status, retry_after_seconds=retry_after_seconds)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that the vendor offers. Zero and the epoch stand for what the vendor does not tell."""

    id: str
    display_name: str
    created_at: str = "1970-01-01T00:00:00Z"
    max_input_tokens: int = 0
    max_output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """What a provider is made from. The key never appears in a repr."""

    vendor: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    default_model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    revision: int = 0


class ModelProvider(Protocol):
    """A vendor. Its class is made from a ModelAccess and serves any number of requests at once."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelDelta, None]:
        """Ask, and yield what comes until Stop. Raises ModelError; closing it early ends the request."""
        ...

    async def list_models(self) -> list[ModelInfo]:
        """What an agent may name as its model, newest first. Raises ModelError."""
        ...

    async def close(self) -> None:
        """Give connections back; nothing is asked afterwards."""
        ...


def block_chars(block: Block) -> int:
    """Roughly how many characters of context a block takes."""
    kind = block.get("type")
    if kind == "text":
        return len(block["text"])
    if kind == "tool_result":
        return sum(map(block_chars, block.get("content") or ()))
    if kind == "tool_use":
        return len(block["name"]) + _value_chars(block["input"])
    return _value_chars(block.get("source"))


def _value_chars(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(str(key)) + _value_chars(item) for key, item in value.items())
    if isinstance(value, Sequence):
        return sum(map(_value_chars, value))
    return 4
