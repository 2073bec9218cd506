"""Takes secrets out of what tools say, before it is shown to a model or written anywhere.

Owns which spellings count: plain, JSON, URL, hexadecimal and base64 in all alignments,
also where a base64 text is wrapped into lines. It is the last fence, not the first: in a
sandbox there are placeholders in the first place.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from services.worker.sandbox.replacing import Replacer, ReplacingStream
from services.worker.sandbox.spellings import base64_cores, spellings
from services.worker.tools import ToolOutcome

_LINE_END = re.compile(r"\r?\n")
# A wrapped text of fewer characters would be taken for one by chance.
_LEAST_WRAPPED = 12


class Scrubber:
    """Knows secrets by a name for people; `add` takes more of them at any time.

    Without secrets every method hands back what it was given.
    """

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        """`secrets` maps a value to the name that is shown in its place."""
        self._names: dict[str, str] = {}
        self._replacer = Replacer({})
        # What may stand in several lines, and the mark for it.
        self._wrapped: dict[str, str] = {}
        self._words: dict[bytes, bytes] = {}
        self.add(secrets or {})

    def __bool__(self) -> bool:
        return bool(self._replacer)

    def add(self, secrets: Mapping[str, str]) -> None:
        """Know these values too, those of former versions included: an old key is still a key."""
        new = {value: name for value, name in secrets.items() if value not in self._names}
        if not new:
            return
        self._names |= new
        for value, name in new.items():
            shown = mark(name)
            for word in spellings(value):
                self._words.setdefault(word, shown.encode())
            for core in base64_cores(value.encode("utf-8", "surrogatepass")):
                if len(core) >= _LEAST_WRAPPED:
                    self._wrapped.setdefault(core.decode(), shown)
        self._replacer = Replacer(self._words)

    def text(self, text: str) -> str:
        """The text without secrets."""
        if not self._replacer:
            return text
        scrubbed = self._replacer.replace(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
        if "\n" in scrubbed:
            joined = _LINE_END.sub("", scrubbed)
            for core, shown in self._wrapped.items():
                if core in joined:
                    scrubbed = _without_wrapped(scrubbed, core, shown)
                    joined = _LINE_END.sub("", scrubbed)
        return scrubbed

    def value(self, value: Any) -> Any:
        """A JSON value without secrets, in its strings and in the names of its fields."""
        if not self._replacer:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def outcome(self, outcome: ToolOutcome) -> ToolOutcome:
        """A tool's result without secrets; the same object where there is none in it."""
        if not self._replacer:
            return outcome
        text, overflow = self.text(outcome.text), self.value(outcome.overflow)
        if text == outcome.text and overflow == outcome.overflow:
            return outcome
        return replace(outcome, text=text, overflow=overflow)

    def stream(self) -> ReplacingStream:
        """For output that arrives in pieces, such as what a command writes."""
        return self._replacer.stream()


def _without_wrapped(text: str, core: str, shown: str) -> str:
    """The text without a word that may be divided by ends of lines."""
    lines = _LINE_END.split(text)
    ends = [found.span() for found in _LINE_END.finditer(text)]
    joined = "".join(lines)
    # Where each line begins in the text, and where without the ends before it.
    begins = [0, *(end for _, end in ends)]
    places = list(accumulate(map(len, lines), initial=0))[:-1]

    def in_text(place: int) -> int:
        line = bisect_right(places, place) - 1
        return begins[line] + place - places[line]

    done: list[str] = []
    after = start = 0
    while (found := joined.find(core, start)) >= 0:
        start = found + len(core)
        done += (text[after : in_text(found)], shown)
        after = in_text(start - 1) + 1
    return "".join((*done, text[after:]))


def mark(name: str) -> str:
    """What stands in a secret's place."""
    return f"[secret {name} removed]"
