"""What a skill says of itself: the front matter of its SKILL.md.

The front matter is a YAML mapping between two lines of three hyphens at the very beginning. Only scalars of it are ever
looked at, as text: no value is built from a tag, and anchors, which make a bomb of few bytes, are refused.
"""

import re
from dataclasses import dataclass

import yaml

from services.sessions.domain.skill_errors import InvalidSkillPackage

MANIFEST = "SKILL.md"
MAX_MANIFEST_BYTES = 1024 * 1024
MAX_FRONT_MATTER_CHARACTERS = 16 * 1024
MAX_DEPTH = 16
MAX_NAME_CHARACTERS = 64
MAX_DESCRIPTION_CHARACTERS = 1024

_FENCE = "---"
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_TAG = re.compile(r"<[^<>]*>")
_TEXT = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The name and the purpose of a skill."""

    name: str
    description: str


def read_manifest(data: bytes, *, folder: str | None) -> Manifest:
    """Reads SKILL.md. A front matter without a name takes that of the enclosing folder."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise _refused(f"is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _refused("is not text in UTF-8") from None
    fields = _scalars(_front_matter(text))
    name, description = fields.get("name", folder), fields.get("description")
    if not name:
        raise _refused("needs a name in its front matter")
    if len(name) > MAX_NAME_CHARACTERS or not _NAME.fullmatch(name):
        raise _refused(
            f"has the name {name[:80]!r}; a name is 1 to {MAX_NAME_CHARACTERS} lower-case letters, digits and single"
            " hyphens between them"
        )
    if not description or not description.strip():
        raise _refused("needs a description in its front matter, which says what the skill is for")
    description = " ".join(description.split())
    if len(description) > MAX_DESCRIPTION_CHARACTERS:
        raise _refused(f"has a description of more than {MAX_DESCRIPTION_CHARACTERS} characters")
    if _TAG.search(description) or not description.isprintable():
        raise _refused("has a description with tags or unprintable characters in it")
    return Manifest(name, description)


def _front_matter(text: str) -> str:
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        raise _refused("must begin with a front matter between two lines of ---")
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        raise _refused("has a front matter that does not end")
    front = "\n".join(lines[1:end])
    if len(front) > MAX_FRONT_MATTER_CHARACTERS:
        raise _refused(f"has a front matter of more than {MAX_FRONT_MATTER_CHARACTERS} characters")
    return front


def _scalars(front: str) -> dict[str, str]:
    """The text values of the mapping, by key."""
    try:
        _check_events(front)
        node = yaml.compose(front, Loader=yaml.SafeLoader)
    except yaml.YAMLError as broken:
        raise _refused(f"has a front matter that is no YAML{_place(broken)}") from None
    except (RecursionError, ValueError):
        raise _refused("has a front matter that can't be read") from None
    if not isinstance(node, yaml.MappingNode):
        raise _refused("has a front matter that is no mapping")
    fields: dict[str, str] = {}
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in seen:
            raise _refused(f"has {key.value[:80]!r} twice in its front matter")
        seen.add(key.value)
        if isinstance(value, yaml.ScalarNode) and value.tag == _TEXT:
            fields[key.value] = value.value
        elif key.value in ("name", "description"):
            raise _refused(f"must have text as its {key.value}; put it in quotes")
    return fields


def _check_events(front: str) -> None:
    """Looks at the stream before a tree is made of it. Time grows with the square of the depth, so that is bounded."""
    depth = 0
    for event in yaml.parse(front, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _refused("uses anchors in its front matter, which are not taken")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _refused(f"has a front matter that is nested deeper than {MAX_DEPTH} levels")


def _place(broken: yaml.YAMLError) -> str:
    mark = getattr(broken, "problem_mark", None)
    return f" (line {mark.line + 2})" if mark is not None else ""


def _refused(what: str) -> InvalidSkillPackage:
    return InvalidSkillPackage(f"{MANIFEST} {what}.", field="files", entry=MANIFEST)
