"""Wildcard patterns on paths: `*`, `?`, `[a-z]`, `{a,b}` and `**` for any depth.

Matching is by two pointers, so its cost is at most pattern times name, whatever
the pattern; a regular expression with backtracking could take for ever.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

_MAX_ALTERNATIVES = 256
_ANY = "*"
# One token of a segment: the star, or a test of one character.
_Token = str | Callable[[str], bool]
_Segment = str | tuple[_Token, ...]
_DEPTH = "**"


class PatternInvalid(ValueError):
    """The pattern cannot be understood; the text says why."""


class PathPattern:
    """A compiled pattern; `matches` takes the segments of a relative path."""

    def __init__(self, pattern: str) -> None:
        self._alternatives = [_compile(each) for each in _expand(pattern)]

    def matches(self, segments: Sequence[str]) -> bool:
        """Whether the whole path fits."""
        return any(_match_path(each, segments) for each in self._alternatives)

    @property
    def deepest(self) -> int | None:
        """The greatest number of segments that can match; None without bound."""
        if any(_DEPTH in each for each in self._alternatives):
            return None
        return max(len(each) for each in self._alternatives)


def _expand(pattern: str) -> list[str]:
    """Resolve `{a,b}` into plain patterns, nested ones too."""
    done: list[str] = []
    pending = [pattern]
    while pending:
        current = pending.pop()
        span = _first_braces(current)
        if span is None:
            done.append(current)
            continue
        start, end, commas = span
        cuts = [start, *commas, end]
        for left, right in pairwise(cuts):
            pending.append(current[:start] + current[left + 1 : right] + current[end + 1 :])
        if len(pending) + len(done) > _MAX_ALTERNATIVES:
            raise PatternInvalid(f"the braces stand for more than {_MAX_ALTERNATIVES} alternatives")
    return done


def _first_braces(pattern: str) -> tuple[int, int, list[int]] | None:
    start = pattern.find("{")
    while start >= 0:
        depth, commas = 0, []
        for index in range(start, len(pattern)):
            char = pattern[index]
            depth += (char == "{") - (char == "}")
            if char == "," and depth == 1:
                commas.append(index)
            if depth == 0:
                if commas:
                    return start, index, commas
                break
        start = pattern.find("{", start + 1)
    return None


def _compile(pattern: str) -> tuple[_Segment, ...]:
    compiled: list[_Segment] = []
    for segment in pattern.split("/"):
        if segment in ("", "."):
            continue
        if segment == _DEPTH:
            if not compiled or compiled[-1] != _DEPTH:
                compiled.append(_DEPTH)
        else:
            compiled.append(_tokens(segment))
    if not compiled:
        raise PatternInvalid("the pattern is empty")
    return tuple(compiled)


@lru_cache(maxsize=1024)
def _tokens(segment: str) -> tuple[_Token, ...]:
    tokens: list[_Token] = []
    index = 0
    while index < len(segment):
        char = segment[index]
        end = _class_end(segment, index) if char == "[" else -1
        if char == "*":
            if not tokens or tokens[-1] != _ANY:
                tokens.append(_ANY)
        elif char == "?":
            tokens.append(lambda _: True)
        elif end > 0:
            tokens.append(_class(segment[index + 1 : end]))
            index = end
        else:
            if char == "\\" and index + 1 < len(segment):
                index += 1
                char = segment[index]
            tokens.append(char.__eq__)
        index += 1
    return tuple(tokens)


def _class_end(segment: str, start: int) -> int:
    first = start + 1
    if first < len(segment) and segment[first] in "!^":
        first += 1
    # A bracket right at the beginning of a class stands for itself.
    return segment.find("]", first + 1)


def _class(body: str) -> Callable[[str], bool]:
    negated = body[0] in "!^"
    body = body[negated:]
    ranges: list[tuple[str, str]] = []
    index = 0
    while index < len(body):
        if index + 2 < len(body) and body[index + 1] == "-":
            ranges.append((body[index], body[index + 2]))
            index += 3
        else:
            ranges.append((body[index], body[index]))
            index += 1
    return lambda char: any(low <= char <= high for low, high in ranges) is not negated


def _match_path(pattern: Sequence[_Segment], segments: Sequence[str]) -> bool:
    at, used, retry_at, retry_used = 0, 0, -1, 0
    while used < len(segments):
        part = pattern[at] if at < len(pattern) else None
        if part == _DEPTH:
            retry_at, retry_used = at, used
            at += 1
        elif isinstance(part, tuple) and _match_segment(part, segments[used]):
            at += 1
            used += 1
        elif retry_at >= 0:
            retry_used += 1
            at, used = retry_at + 1, retry_used
        else:
            return False
    return all(part == _DEPTH for part in pattern[at:])


def _match_segment(tokens: tuple[_Token, ...], name: str) -> bool:
    # Unlike a shell's, a star matches a leading dot too: agents look for hidden
    # files and would take their absence for a fact.
    at, used, retry_at, retry_used = 0, 0, -1, 0
    while used < len(name):
        token = tokens[at] if at < len(tokens) else None
        if token == _ANY:
            retry_at, retry_used = at, used
            at += 1
        elif callable(token) and token(name[used]):
            at += 1
            used += 1
        elif retry_at >= 0:
            retry_used += 1
            at, used = retry_at + 1, retry_used
        else:
            return False
    return all(token == _ANY for token in tokens[at:])
