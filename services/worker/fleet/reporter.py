"""What a worker says about itself: lines for people or for programs, and one line that stays at the bottom.

On a terminal the last line tells the state and is drawn anew when it changes; elsewhere each event is a line. With
`--json` each is an object. Everything is written to stderr and passes the masks for secrets first.
"""

import contextlib
import datetime
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from kit.redaction import mask_keys, mask_text

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_SHORT = {"warning": "warning: ", "error": "error: "}


class Reporter:
    """Where a worker's words go."""

    def __init__(self, *, as_json: bool, level: str = "info", stream: TextIO | None = None) -> None:
        self._as_json = as_json
        self._least = _LEVELS[level]
        self._stream = stream or sys.stderr
        self._line = ""
        self.draws = not as_json and self._stream.isatty()

    def debug(self, text: str, **facts: Any) -> None:
        """What helps to find a fault."""
        self._tell("debug", text, facts)

    def info(self, text: str, **facts: Any) -> None:
        """What happens."""
        self._tell("info", text, facts)

    def warning(self, text: str, **facts: Any) -> None:
        """What is not as it should be, and is dealt with."""
        self._tell("warning", text, facts)

    def error(self, text: str, **facts: Any) -> None:
        """What somebody has to look at."""
        self._tell("error", text, facts)

    def status(self, line: str) -> None:
        """Have this stand in the last line of the terminal."""
        # One that wraps could not be taken back.
        line = line[: shutil.get_terminal_size().columns - 1]
        if self.draws and line != self._line:
            self._line = line
            self._write(f"\r\x1b[K{mask_text(line)}")

    def close(self) -> None:
        """Leave the terminal tidy."""
        if self.draws and self._line:
            self._line = ""
            self._write("\r\x1b[K")

    def _tell(self, level: str, text: str, facts: dict[str, Any]) -> None:
        if _LEVELS[level] < self._least:
            return
        now = datetime.datetime.now(datetime.UTC)
        if self._as_json:
            line = {"time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"), "level": level}
            line |= {"event": text, **mask_keys(None, level, facts)}
            self._write(mask_text(json.dumps(line, default=str)) + "\n")
            return
        shown = " ".join(f"{name}={value}" for name, value in mask_keys(None, level, facts).items())
        written = f"{now.astimezone():%H:%M:%S} {_SHORT.get(level, '')}{text}{f'  ({shown})' if shown else ''}"
        clear, again = ("\r\x1b[K", mask_text(self._line)) if self.draws else ("", "")
        self._write(f"{clear}{_plain(mask_text(written))}\n{again}")

    def _write(self, text: str) -> None:
        # A terminal or log reader that is gone must not stop work that is under way.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


class LogHandler(logging.Handler):
    """Lines of libraries come the same way."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(logging.WARNING)
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one on."""
        with contextlib.suppress(Exception):
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            self._reporter._tell("error" if record.levelno >= logging.ERROR else "warning", text, {})


class Seldom:
    """Lets the same words through once in a while: a platform that is away for an hour fills no disk."""

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._said: tuple[str, float] | None = None

    def now(self, words: str) -> bool:
        """Whether to say it now."""
        at = self._clock()
        if self._said is not None and self._said[0] == words and at - self._said[1] < self._seconds:
            return False
        self._said = (words, at)
        return True

    def forget(self) -> None:
        """The matter is over: the next time it is news."""
        self._said = None


def _plain(text: str) -> str:
    """Without anything that a terminal would take for a command."""
    return "".join(each if each in "\n\t" or each.isprintable() else "\ufffd" for each in text)
