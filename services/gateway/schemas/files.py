"""Shapes of files and artifacts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from .shapes import Page, Rendered, Shape

FileName = Annotated[str, Field(min_length=1, max_length=1024)]
MediaType = Annotated[str, Field(min_length=3, max_length=255, pattern=r"^[^/\s]+/[^/]+$")]
Encoding = Literal["utf8", "base64"]
Lifetime = Annotated[int, Field(ge=3_600, le=7_776_000)]
# Read apart from the rest of the body, which keeps an empty string in its place.
Content = Annotated[str, Field(description="The text itself, or its base64.")]

_SPELLINGS = (("name", "filename"), ("media_type", "mime_type"))


class _Named(Shape):
    media_type: MediaType | None = None
    mime_type: MediaType | None = None
    name: FileName | None = None
    filename: FileName | None = None
    content: Content
    encoding: Encoding = "utf8"

    @model_validator(mode="before")
    @classmethod
    def _agree(cls, value: Any) -> Any:
        """Two spellings of one field may both be there as long as they say the same."""
        if isinstance(value, dict):
            for ours, published in _SPELLINGS:
                both = value.get(ours) is not None and value.get(published) is not None
                if both and value[ours] != value[published]:
                    raise PydanticCustomError(
                        "spellings_differ",
                        "{ours} and {published} name one thing; send one of them, or both alike.",
                        {"ours": ours, "published": published},
                    )
        return value

    def given_name(self) -> str:
        """Under whichever spelling it came."""
        return self.name or self.filename or ""

    def given_media_type(self) -> str:
        """Likewise."""
        return self.media_type or self.mime_type or ""


class FileCreate(_Named):
    """A file in JSON; `filename` and `mime_type` are taken for `name` and `media_type`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "notes.txt", "media_type": "text/plain", "content": "hello", "encoding": "utf8"}]
        }
    )

    expires_in_seconds: Lifetime | None = None

    @model_validator(mode="after")
    def _require_name(self) -> FileCreate:
        if not self.given_name():
            raise PydanticCustomError("name_required", "name is required.")
        return self


class ArtifactCreate(_Named):
    """An artifact in JSON; its name is the last part of its path where none is given."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "path": "/artifacts/report.md",
                    "name": "report.md",
                    "media_type": "text/markdown",
                    "content": "# Run report",
                }
            ]
        }
    )

    path: Annotated[str, Field(min_length=1, max_length=2048)]


class FileScope(Rendered):
    """The session that a file belongs to."""

    id: str
    type: Literal["session"]


class FileSummary(Rendered):
    """A file as listings show it."""

    id: str
    type: Literal["file"]
    filename: str
    name: str
    mime_type: str
    media_type: str
    size_bytes: int
    sha256: str
    downloadable: bool
    scope: FileScope | None
    session_id: str | None
    status: Literal["active", "archived"]
    created_at: str
    updated_at: str
    expires_at: str | None
    archived_at: str | None


class File(FileSummary):
    """A file with the beginning of its text; null where it is no text."""

    preview: str | None
    preview_truncated: bool


class FilePage(Page):
    """A page of files, in both envelopes."""

    data: list[FileSummary]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Artifact(Rendered):
    """A generated output of a session; the preview is null where it is no text."""

    id: str
    type: Literal["artifact"]
    session_id: str
    path: str
    name: str
    media_type: str
    size_bytes: int
    sha256: str
    preview: str | None
    preview_truncated: bool
    created_at: str
    updated_at: str


class ArtifactPage(Page):
    """A page of artifacts."""

    data: list[Artifact]
