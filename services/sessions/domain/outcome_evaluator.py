"""The built-in evaluator: criteria against the text of a session's log, by rules alone.

A criterion is met where each word that carries its meaning stands somewhere in the
transcript. Case and endings do not count, nor do words that only introduce the matter
("mentions", "should", "the"). The same log always gives the same score: the share of
criteria that are met.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

_WORD = re.compile(r"\w+")
# Words of criteria that say how something is said, not what.
_FILLERS = frozenset(
    (
        *("a", "all", "also", "an", "and", "any", "are", "as", "at", "be", "by", "each", "every", "for", "from", "has"),
        *("have", "in", "into", "is", "it", "its", "must", "of", "on", "or", "over", "shall", "should", "some", "than"),
        *("that", "the", "their", "them", "then", "there", "these", "they", "this", "those", "to", "was", "were"),
        *("when", "where", "which", "while", "will", "with", "agent", "contain", "contains", "cover", "covers"),
        *("describe", "describes", "discuss", "discusses", "explain", "explains", "give", "gives", "include"),
        *("includes", "including", "mention", "mentioned", "mentions", "produce", "produces", "provide", "provides"),
        *("show", "shows", "tell", "tells"),
    )
)
_ENDINGS = ("ing", "ed", "es", "s")
# A part of a word that is shorter than this is not cut further.
_LEAST_STEM = 3


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the evaluator found."""

    status: str
    score: float
    summary: str
    # (criterion, whether it is met), in the order of the definition.
    criteria: tuple[tuple[str, bool], ...]


class Transcript:
    """Reads a log piece by piece and remembers only which of the wanted words it has seen."""

    def __init__(self, criteria: Sequence[str]) -> None:
        self._wanted = [(criterion, _meaning(criterion)) for criterion in criteria]
        self._missing = set().union(*(words for _, words in self._wanted))

    @property
    def is_complete(self) -> bool:
        """Whether nothing that is still to come could change the result."""
        return not self._missing

    def read(self, body: bytes) -> None:
        """Take the text of one event."""
        for text in _texts(orjson.loads(body)):
            self._missing -= {_stem(word) for word in _words(text)}
            # Not every script has spaces between its words.
            folded = text.casefold()
            self._missing -= {word for word in self._missing if not word.isascii() and word in folded}

    def evaluate(self, pass_threshold: float) -> Evaluation:
        """What the transcript shows."""
        found = tuple((criterion, not words & self._missing) for criterion, words in self._wanted)
        met = sum(is_met for _, is_met in found)
        score = met / len(found)
        partly = "inconclusive" if met else "failed"
        status = "passed" if score >= pass_threshold else partly
        told = f"{met} of {len(found)} criteria stand in the transcript; {pass_threshold:g} of them is enough to pass."
        return Evaluation(status, round(score, 4), told, found)


def _meaning(criterion: str) -> set[str]:
    words = _words(criterion)
    return {_stem(word) for word in words if word not in _FILLERS} or {_stem(word) for word in words}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM and not word.endswith("ss"):
            word = word.removesuffix(ending)
            break
    return word.removesuffix("e")


def _texts(event: dict[str, Any]) -> Iterable[str]:
    """What an event says in its content, and what a call was given."""
    for block in event.get("content") or ():
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            yield block["text"]
    if event.get("type", "").startswith("agent.") and "input" in event:
        yield orjson.dumps(event["input"]).decode()
