"""The platform's HTTP API as the command line uses it: plain requests, and the event stream read line by line."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx2
import orjson

from cli.errors import CommandFailed, KeyNeeded

_SECONDS = 30.0
# So many connections in a row without a single event mean that nobody is there.
_BARREN_CONNECTIONS = 4


class Api:
    """One platform. Errors come out as CommandFailed, in the words of the platform."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy of the operator's has no business between two programs of one machine.
        self._client = httpx2.AsyncClient(base_url=url, headers=headers, timeout=_SECONDS, trust_env=False)

    async def __aenter__(self) -> "Api":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        return await self._ask("GET", path, params=query)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._ask("POST", path, content=orjson.dumps(body), headers={"content-type": "application/json"})

    async def delete(self, path: str, **query: str) -> dict[str, Any]:
        return await self._ask("DELETE", path, params=query)

    async def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            answer = await self._client.request(method, path, **options)
        except httpx2.HTTPError as error:
            told = str(error).rstrip(".") or type(error).__name__
            raise CommandFailed(f"{method} {path} at {self._client.base_url} failed: {told}.") from error
        if answer.is_error:
            told = f"{method} {path} was refused with {answer.status_code}: {_message(answer.content)}"
            if answer.status_code == 401:
                raise KeyNeeded(told + " Commands take the key from MANAGED_AGENTS_API_KEY.")
            raise CommandFailed(told)
        try:
            return dict(orjson.loads(answer.content))
        except (orjson.JSONDecodeError, TypeError, ValueError):
            raise CommandFailed(f"What answers at {self._client.base_url} is no managed-agents platform.") from None

    async def events(self, session_id: str, *, silence_seconds: float) -> AsyncGenerator[dict[str, Any], None]:
        """Every event of the session from its first one on. A lost connection is taken up where it broke."""
        last, barren = 0, 0
        while barren < _BARREN_CONNECTIONS:
            barren += 1
            try:
                async with aclosing(self._stream(session_id, last, silence_seconds)) as stream:
                    async for number, event in stream:
                        last, barren = number or last, 0
                        yield event
            except httpx2.HTTPError:
                await asyncio.sleep(barren * 0.2)
        raise CommandFailed(f"The event stream of {session_id} was lost.")

    async def _stream(
        self, session_id: str, last: int, silence_seconds: float
    ) -> AsyncGenerator[tuple[int, dict[str, Any]], None]:
        headers = {"accept": "text/event-stream", "last-event-id": str(last)}
        timeout = httpx2.Timeout(_SECONDS, read=silence_seconds)
        path = f"/v1/sessions/{session_id}/events/stream"
        async with self._client.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if answer.is_error:
                raise CommandFailed(f"The event stream was refused: {_message(await answer.aread())}")
            number, data = 0, []
            async for line in answer.aiter_lines():
                name, _, value = line.partition(":")
                if not line and data:
                    yield number, orjson.loads("\n".join(data))
                    data = []
                elif name == "id" and value.strip().isdigit():
                    number = int(value)
                elif name == "data":
                    data.append(value.removeprefix(" "))


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return body[:200].decode(errors="replace") or "no reason given"
