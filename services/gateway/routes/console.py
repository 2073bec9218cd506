"""The console: one page that starts sessions and follows them, over the same API as everyone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

PATH = "/console"
# The page loads nothing from elsewhere and may be framed by nobody.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def console(_request: Request) -> Response:
    """GET /console."""
    headers = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff", "cache-control": "no-cache"}
    return HTMLResponse(_page(), headers=headers)


async def dashboard(_request: Request) -> Response:
    """GET /dashboard: where api.md has the console."""
    return RedirectResponse(PATH)


@cache
def _page() -> bytes:
    return (Path(__file__).parent / "console.html").read_bytes()
