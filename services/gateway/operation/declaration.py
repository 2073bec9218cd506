"""The declaration of one route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ..admission.roles import Holders, Needs
from .body import DEFAULT_MAX_BODY_BYTES
from .call import Call
from .query import Parameter

Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True)
class Operation:
    """One method on one path; see the package's docstring."""

    method: str
    path: str
    handler: Handler
    tag: str
    summary: str
    description: str = ""
    body: type[BaseModel] | None = None
    query: tuple[Parameter, ...] | None = None
    response: type[BaseModel] | None = None
    status: int = 200
    # Further success statuses with the same body, for the document.
    other_statuses: tuple[int, ...] = ()
    idempotent_write: bool = False
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    # Whether the body may be left out; the handler then gets an empty one.
    optional_body: bool = False
    # A body that the handler reads itself, while it arrives: as JSON, and where `form` (a JSON Schema) says so, as
    # multipart/form-data too.
    upload: type[BaseModel] | None = None
    form: dict[str, Any] | None = None
    # A route that answers with bytes of any media type.
    content: bool = False
    stream: bool = False
    # A route that also streams when asked to, beside its JSON answer.
    may_stream: bool = False
    # Whether it answers for a turn, whose failure is then the request's.
    answers_for_turn: bool = False
    # False for routes that answer before any credential is checked.
    needs_credential: bool = True
    # The least role that may; None: `read_only` for GET, `member` for everything else.
    needs: Needs | None = None
    # Whether a worker's key is taken too, for its own environment where the path names one.
    workers: bool = False
    # Whether a caller without a credential may have one in the body; the handler then refuses who has none.
    key_in_body: bool = False
    # Whether strings in the body may hold NUL characters: what a program printed may.
    nul_in_body: bool = False
    # What a worker reaches here through a work item that it holds: see `admission/holders.py`.
    holders: Holders | None = None
    # Whether only workers may, where there are keys.
    workers_only: bool = False

    @property
    def role(self) -> Needs:
        """The least role that may."""
        return self.needs or ("read_only" if self.method == "GET" else "member")
