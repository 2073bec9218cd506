"""Many words replaced in a stream of bytes, wherever the stream is cut.

The outcome never depends on how the bytes were divided: of words that begin at one
place the longest wins, the leftmost place first, and no replacement is read again.
Held back are only bytes with which a word may be beginning, so whatever else a
stream brings goes on at once.
"""

import re
from collections.abc import Callable, Mapping


class Replacer:
    """A set of words, each with what takes its place."""

    def __init__(self, words: Mapping[bytes, bytes]) -> None:
        self.words = {word: put for word, put in words.items() if word}
        by_length = sorted(self.words, key=len, reverse=True)
        # An alternation takes the first that fits, so the longest stands first.
        self._pattern = re.compile(b"|".join(map(re.escape, by_length)), re.DOTALL) if by_length else None
        self._longest = len(by_length[0]) if by_length else 0
        self._by_first: dict[int, list[bytes]] = {}
        for word in by_length:
            self._by_first.setdefault(word[0], []).append(word)

    def __bool__(self) -> bool:
        return self._pattern is not None

    def replace(self, data: bytes) -> bytes:
        """All of `data` with every word replaced."""
        if self._pattern is None or not self.has_any(data):
            return data
        return self._pattern.sub(lambda found: self.words[found[0]], data)

    def stream(self, put: Callable[[bytes], bytes] | None = None) -> "ReplacingStream":
        """A stream of its own; `put` says what takes the place of a word, where that is not known from the start."""
        return ReplacingStream(self, put)

    def has_any(self, data: bytes) -> bool:
        """Whether a word stands in it."""
        # Looking for one word after the other is many times faster than the alternation, and mostly finds nothing.
        return any(word in data for word in self.words)

    def open_from(self, data: bytes, start: int) -> int:
        """The first place from `start` at which the rest of `data` may be the beginning of a word."""
        for place in range(max(start, len(data) - self._longest + 1), len(data)):
            words = self._by_first.get(data[place])
            if words:
                rest = data[place:]
                if any(len(word) > len(rest) and word.startswith(rest) for word in words):
                    return place
        return len(data)


class ReplacingStream:
    """One stream. `feed` returns what is certain by then, `finish` the rest."""

    def __init__(self, replacer: Replacer, put: Callable[[bytes], bytes] | None = None) -> None:
        self._replacer = replacer
        self._put = put or replacer.words.__getitem__
        # Bytes with which a word may be beginning.
        self.held = b""

    def finds_with(self, data: bytes) -> bool:
        """Whether a word would be whole once these bytes are fed."""
        return self._replacer.has_any(self.held + data)

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes."""
        replacer = self._replacer
        if replacer._pattern is None:
            return data
        data = self.held + data
        done: list[bytes] = []
        place = 0
        has_any = replacer.has_any(data)
        while True:
            open_from = replacer.open_from(data, place)
            found = replacer._pattern.search(data, place) if has_any else None
            # One that begins before every place that is still open can't become another by what follows.
            if found is None or found.start() >= open_from:
                done.append(data[place:open_from])
                self.held = data[open_from:]
                return b"".join(done)
            done += (data[place : found.start()], self._put(found[0]))
            place = found.end()

    def finish(self) -> bytes:
        """The end of the stream: what was held back, with the words that are whole in it."""
        held, self.held = self.held, b""
        pattern = self._replacer._pattern
        return pattern.sub(lambda found: self._put(found[0]), held) if pattern is not None else held
