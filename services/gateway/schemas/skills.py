"""Shapes of skills and their versions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from .shapes import Page, Rendered, Shape

FileName = Annotated[str, Field(min_length=1, max_length=1024)]
DisplayName = Annotated[str, Field(max_length=255)]
MAX_FILES = 1_000


class SkillFile(Shape):
    """One file of a skill, with its folder in its name; or one archive that holds them all."""

    name: FileName
    content: Annotated[str, Field(description="The text itself, or its base64.")]
    encoding: Literal["utf8", "base64"] = "utf8"


class SkillVersionCreate(Shape):
    """The files of a package."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "files": [
                        {
                            "name": "greeter/SKILL.md",
                            "content": "---\nname: greeter\ndescription: Says hello.\n---\n\nSay hello.",
                        }
                    ]
                }
            ]
        }
    )

    files: Annotated[list[SkillFile], Field(min_length=1, max_length=MAX_FILES)]


class SkillCreate(SkillVersionCreate):
    """The files of a package, and what the skill is called; `display_title` is taken for `display_name`."""

    display_name: DisplayName | None = None
    display_title: DisplayName | None = None

    @model_validator(mode="after")
    def _agree(self) -> Any:
        """Two spellings of one field may both be there as long as they say the same."""
        both = (self.display_name, self.display_title)
        if None not in both and both[0] != both[1]:
            raise PydanticCustomError(
                "spellings_differ", "display_name and display_title name one thing; send one of them, or both alike."
            )
        return self

    def given_name(self) -> str:
        """Under whichever spelling it came."""
        return self.display_name or self.display_title or ""


def form(*, with_label: bool) -> dict[str, Any]:
    """The JSON Schema of a multipart upload."""
    file = {"type": "string", "format": "binary"}
    properties: dict[str, Any] = {
        "files[]": {
            "type": "array",
            "items": file,
            "description": "Each file with its folder in its filename, or one archive (.zip, .skill). `files` too.",
        }
    }
    if with_label:
        properties["display_name"] = {"type": "string", "maxLength": 255}
    return {"type": "object", "properties": properties, "required": ["files[]"]}


class Skill(Rendered):
    """A skill."""

    id: str
    type: Literal["skill"]
    display_name: str
    display_title: str
    name: str
    description: str
    source: Any
    latest_version_id: str
    latest_version: str
    created_at: str
    updated_at: str


class SkillVersion(Rendered):
    """One version of a skill."""

    id: str
    type: Literal["skill_version"]
    skill_id: str
    name: str
    directory: str
    description: str
    version: str
    size_bytes: int
    sha256: str
    created_at: str


class SkillDeleted(Rendered):
    """What a deletion answers."""

    id: str
    type: Literal["skill_deleted"]


class SkillVersionDeleted(Rendered):
    """What the deletion of a version answers."""

    id: str
    type: Literal["skill_version_deleted"]


class SkillPage(Page):
    """A page of skills, in both envelopes."""

    data: list[Skill]
    has_more: bool
    first_id: str | None
    last_id: str | None


class SkillVersionPage(Page):
    """A page of versions, in both envelopes."""

    data: list[SkillVersion]
    has_more: bool
    first_id: str | None
    last_id: str | None
