"""Many words replaced in a stream of bytes, wherever the stream is cut.

The outcome never depends on how the bytes were divided: of words that begin at one
place the longest wins, the leftmost place first, and no replacement is read again.
Held back are only bytes with which a word may be beginning, so whatever else a
stream brings goes on at once. Words are found by how they begin: an expression of whole
ones would take seconds to make where they are long.
"""

import re
from collections.abc import Callable, Mapping

_HEAD_BYTES = 16


class Replacer:
    """A set of words, each with what takes its place."""

    def __init__(self, words: Mapping[bytes, bytes]) -> None:
        self.words = {word: put for word, put in words.items() if word}
        by_length = sorted(self.words, key=len, reverse=True)
        heads = dict.fromkeys(word[:_HEAD_BYTES] for word in by_length)
        self._heads = re.compile(b"|".join(map(re.escape, heads)))
        self._longest = len(by_length[0]) if by_length else 0
        # The longest first.
        self._by_first: dict[int, list[bytes]] = {}
        for word in by_length:
            self._by_first.setdefault(word[0], []).append(word)

    def __bool__(self) -> bool:
        return bool(self.words)

    def replace(self, data: bytes) -> bytes:
        """All of `data` with every word replaced."""
        return self.put_all(data, self.words.__getitem__) if self.has_any(data) else data

    def put_all(self, data: bytes, put: Callable[[bytes], bytes]) -> bytes:
        """All of `data` with what `put` says in the place of every word."""
        done: list[bytes] = []
        place = 0
        while (found := self.find(data, place)) is not None:
            start, word = found
            done += (data[place:start], put(word))
            place = start + len(word)
        return b"".join((*done, data[place:]))

    def find(self, data: bytes, place: int) -> tuple[int, bytes] | None:
        """The first word that stands in `data` from a place on, and where."""
        while self.words and (found := self._heads.search(data, place)) is not None:
            place = found.start()
            for word in self._by_first[data[place]]:
                if data.startswith(word, place):
                    return place, word
            place += 1
        return None

    def stream(self, put: Callable[[bytes], bytes] | None = None) -> "ReplacingStream":
        """A stream of its own; `put` says what takes the place of a word, where that is not known from the start."""
        return ReplacingStream(self, put)

    def has_any(self, data: bytes) -> bool:
        """Whether a word stands in it."""
        # Looking for one word after the other is many times faster than the expression, and mostly finds nothing.
        return any(word in data for word in self.words)

    def open_from(self, data: bytes, start: int) -> int:
        """The first place from `start` at which the rest of `data` may be the beginning of a word."""
        for place in range(max(start, len(data) - self._longest + 1), len(data)):
            size = len(data) - place
            for word in self._by_first.get(data[place], ()):
                head = word[: min(size, _HEAD_BYTES)]
                if len(word) > size and data.startswith(head, place) and word.startswith(data[place:]):
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
        if not replacer:
            return data
        data = self.held + data
        done: list[bytes] = []
        place = 0
        has_any = replacer.has_any(data)
        while True:
            open_from = replacer.open_from(data, place)
            found = replacer.find(data, place) if has_any else None
            # One that begins before every place that is still open can't become another by what follows.
            if found is None or found[0] >= open_from:
                done.append(data[place:open_from])
                self.held = data[open_from:]
                return b"".join(done)
            start, word = found
            done += (data[place:start], self._put(word))
            place = start + len(word)

    def finish(self) -> bytes:
        """The end of the stream: what was held back, with the words that are whole in it."""
        held, self.held = self.held, b""
        return self._replacer.put_all(held, self._put)
