"""What an item asks for, judged before anything is done, and what is told of how it went.

A failure of the work itself is a result as any other; `ItemFailed` is for work that could not be done at all.
"""

import asyncio
import base64
import binascii
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from services.worker.fleet.confine import MAX_PATH_CHARS, Confined, PathRefused
from services.worker.fleet.tool.commands import Command, Commands, valid_name
from services.worker.tools import ShellUnavailable

KINDS = ("exec", "read", "write", "list")
DEFAULT_TIMEOUT_SECONDS = 120.0
READ_BYTES = 10 * 1024 * 1024
WRITE_BYTES = 32 * 1024 * 1024
MAX_COMMAND_CHARS = 1024 * 1024
# As much as the gateway takes in one body, less what is around it.
RESULT_BYTES = 15 * 1024 * 1024
_CUT_BYTES = 128 * 1024
_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="files")


class ItemFailed(Exception):
    """The item can't be done; code and text are for whoever waits for it."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(message)

    @property
    def result(self) -> dict[str, Any]:
        """As it is reported."""
        return {"error": {"code": self.code, "message": self.message}}


class Kinds:
    """Does items in one folder."""

    def __init__(self, files: Confined, commands: Commands, *, longest_seconds: float) -> None:
        self._files = files
        self._commands = commands
        self._longest_seconds = longest_seconds

    def expect(self, kind: str) -> None:
        """An item of this kind will be run once it is accepted: what it needs comes up meanwhile."""
        if kind == "exec":
            self._commands.prepare()

    def told(self, item_id: str) -> None:
        """The result of an item has been delivered, or nobody takes it."""
        self._commands.told(item_id)

    async def run(self, item_id: str, kind: str, payload: Any) -> dict[str, Any]:
        """The result of an item; ItemFailed where there is none."""
        if kind not in KINDS:
            raise ItemFailed("unknown_kind", f"This worker does {', '.join(KINDS)}; it knows no {kind[:40]!r}.")
        if not isinstance(payload, Mapping):
            raise ItemFailed("invalid_payload", f"The payload of {kind} must be a JSON object.")
        try:
            if kind == "exec":
                return _fitting(await self._commands.run(await self._command(item_id, payload)))
            return await asyncio.get_running_loop().run_in_executor(_threads, self._file_work, kind, payload)
        except PathRefused as refused:
            raise ItemFailed("path_refused", f"{refused}.") from refused
        except ShellUnavailable as refused:
            raise ItemFailed("command_not_started", f"The command could not be started: {refused}.") from refused
        except OSError as error:
            raise ItemFailed("input_output_error", f"{kind}: {error.strerror or 'input/output error'}.") from error

    async def _command(self, item_id: str, payload: Mapping[str, Any]) -> Command:
        text = _text(payload, "command", most=MAX_COMMAND_CHARS)
        if "\0" in text:
            raise ItemFailed("invalid_payload", "command: must not contain a NUL character.")
        inside = ""
        if payload.get("cwd") is not None:
            cwd = _text(payload, "cwd", most=MAX_PATH_CHARS)
            inside = await asyncio.get_running_loop().run_in_executor(_threads, self._files.inside, cwd)
        return Command(text, inside, _variables(payload.get("env")), self._timeout(payload.get("timeout_ms")), item_id)

    def _timeout(self, asked: Any) -> float:
        if asked is None or asked == 0:
            return min(DEFAULT_TIMEOUT_SECONDS, self._longest_seconds)
        if isinstance(asked, bool) or not isinstance(asked, int | float) or not asked > 0:
            raise ItemFailed("invalid_payload", "timeout_ms: must be a number of milliseconds above 0.")
        return min(asked / 1000, self._longest_seconds)

    def _file_work(self, kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        path = _text(payload, "path", most=MAX_PATH_CHARS)
        if kind == "list":
            entries, more = self._files.entries(path)
            return {"entries": entries, "truncated": True} if more else {"entries": entries}
        if kind == "write":
            data = _decoded(payload)
            self._files.write(path, data)
            return {"bytes": len(data)}
        data = self._files.read(path, READ_BYTES)
        try:
            told = {"content": data.decode(), "encoding": "utf-8"}
            # Control characters take six bytes each in JSON.
            if len(data) * 6 <= RESULT_BYTES or len(orjson.dumps(told)) <= RESULT_BYTES:
                return told
        except UnicodeDecodeError:
            pass
        return {"content": base64.b64encode(data).decode(), "encoding": "base64"}


def _text(payload: Mapping[str, Any], name: str, *, most: int) -> str:
    value = payload.get(name)
    if not isinstance(value, str) or not value:
        raise ItemFailed("invalid_payload", f"{name}: must be a text that is not empty.")
    if len(value) > most:
        raise ItemFailed("invalid_payload", f"{name}: must have at most {most} characters.")
    return value


def _variables(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ItemFailed("invalid_payload", "env: must be an object of texts.")
    for name, value in given.items():
        if not isinstance(name, str) or not valid_name(name):
            raise ItemFailed("invalid_payload", f"env: {str(name)[:100]!r} is no name of a variable.")
        if not isinstance(value, str) or "\0" in value:
            raise ItemFailed("invalid_payload", f"env: {name}: must be a text without NUL characters.")
    return dict(given)


def _decoded(payload: Mapping[str, Any]) -> bytes:
    content, encoding = payload.get("content"), payload.get("encoding", "utf-8")
    if not isinstance(content, str):
        raise ItemFailed("invalid_payload", "content: must be a text.")
    if encoding in ("utf-8", "utf8"):
        try:
            data = content.encode()
        except UnicodeEncodeError:
            raise ItemFailed("invalid_payload", "content: must be valid Unicode text.") from None
    elif encoding == "base64":
        try:
            data = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            raise ItemFailed("invalid_payload", "content: is no base64.") from None
    else:
        raise ItemFailed("invalid_payload", "encoding: must be utf-8 or base64.")
    if len(data) > WRITE_BYTES:
        raise ItemFailed("invalid_payload", f"content: must have at most {WRITE_BYTES} bytes.")
    return data


def _fitting(result: dict[str, Any]) -> dict[str, Any]:
    """Control characters take six bytes each in JSON: an answer of nothing else is cut once more."""
    if len(orjson.dumps(result)) <= RESULT_BYTES:
        return result
    return {
        name: value[:_CUT_BYTES] + "\n[output was cut here]" if isinstance(value, str) else value
        for name, value in result.items()
    }
