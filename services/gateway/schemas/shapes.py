"""What every shape is built from: strict types, no unknown fields, a bound on everything.

Values whose meaning, and whose refusals, belong to a service are marked JUDGED: they
are bounded here and documented, nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_TEXT_LENGTH = 1_000_000
MAX_DATA_LENGTH = 14_000_000
MAX_MEMBERS = 2_000


class Shape(BaseModel):
    """A request body, or an object inside one."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Rendered(BaseModel):
    """An answer; only the document reads it. Clients must expect further fields."""

    model_config = ConfigDict(extra="allow")


class Page(Rendered):
    """The envelope of a canonical collection."""

    prev_page: str | None
    next_page: str | None


def bounded(value: Any, most_text: int = MAX_TEXT_LENGTH) -> Any:
    """Bound every string and collection inside a value of any shape."""
    stack = [value]
    while stack:
        current = stack.pop()
        if isinstance(current, str):
            if len(current) > most_text:
                raise PydanticCustomError(
                    "bounded_text", "strings in here must be at most {most} characters long.", {"most": most_text}
                )
        elif isinstance(current, dict | list):
            if len(current) > MAX_MEMBERS:
                raise PydanticCustomError(
                    "bounded_members",
                    "objects and lists in here must hold at most {most} entries.",
                    {"most": MAX_MEMBERS},
                )
            if isinstance(current, dict):
                stack.extend(current)
                stack.extend(current.values())
            else:
                stack.extend(current)
    return value


# `Annotated[Any, JUDGED, WithJsonSchema(...)]`: a value that its service judges, bounded here.
JUDGED = AfterValidator(bounded)
# The same for events, whose pictures and documents come as text; their service bounds text and data apart.
JUDGED_EVENT = AfterValidator(partial(bounded, most_text=MAX_DATA_LENGTH))

Label = Annotated[str, Field(min_length=1, max_length=256)]
Description = Annotated[str, Field(max_length=2048)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
MetadataPatch = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)] | None], Field(max_length=64)
]
AnyObject = Annotated[dict[str, Any], JUDGED]
