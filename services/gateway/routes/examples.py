"""The example of a page that uses the session gateway from a browser: three small files, and nothing from elsewhere.

`/examples/session-gateway?agent=AGENT_ID` talks to the agent. Where keys are needed, the application's server opens it
with `#ticket=…`, a part of the URL that no server is sent; see `docs/session-gateway.md`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

PATH = "/examples/session-gateway"
_HEADERS = {
    # Only its own files, only its own origin, and nobody may frame it.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_FILES = {PATH: ("chat.html", "text/html"), f"{PATH}/chat.js": ("chat.js", "text/javascript")}
_FILES[f"{PATH}/chat.css"] = ("chat.css", "text/css")


def _endpoint(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def serve(_request: Request) -> Response:
        return Response(_read(name), media_type=media_type, headers=_HEADERS)

    return serve


@cache
def _read(name: str) -> bytes:
    return (Path(__file__).parent / "example" / name).read_bytes()


PAGES = {path: _endpoint(name, media_type) for path, (name, media_type) in _FILES.items()}
