"""Searches the web over a provider that the operator runs or chose: the JSON interface of SearXNG.

    MANAGED_AGENTS_WEB_SEARCH_URL=https://search.example.com        # `/search` is added where the path lacks it

The provider's address is the operator's word, so it may be a private one; its redirects are not followed. The domain
list of the agent holds for what it finds: such results are left out, and said to be.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from yarl import URL

from services.worker.runner.web.body import BoundedBody
from services.worker.runner.web.policy import DomainPolicy, FetchFailed, WebRefused, read_url

MAX_BYTES = 2 * 1024 * 1024
MAX_RESULTS = 10
SECONDS = 20.0
MAX_TITLE_CHARACTERS = 300
MAX_SNIPPET_CHARACTERS = 1_000
# The language that most pages of a country are in, as providers of this kind take a region.
_LOCALES = {
    **{country: f"en-{country}" for country in ("AU", "CA", "GB", "IE", "IN", "NZ", "PH", "SG", "US", "ZA")},
    **{country: f"es-{country}" for country in ("AR", "CL", "CO", "ES", "MX", "PE")},
    **{country: f"{country.lower()}-{country}" for country in ("BG", "DE", "FI", "FR", "HR", "HU", "ID", "IT")},
    **{
        country: f"{country.lower()}-{country}"
        for country in ("LT", "LV", "NL", "PL", "PT", "RO", "RU", "SK", "TH", "TR")
    },
    **{"AT": "de-AT", "BE": "nl-BE", "BR": "pt-BR", "CH": "de-CH", "CN": "zh-CN", "CZ": "cs-CZ", "DK": "da-DK"},
    **{"EE": "et-EE", "GR": "el-GR", "HK": "zh-HK", "IL": "he-IL", "JP": "ja-JP", "KR": "ko-KR", "NO": "nb-NO"},
    **{"SE": "sv-SE", "SI": "sl-SI", "TW": "zh-TW", "UA": "uk-UA", "VN": "vi-VN"},
}


@dataclass(frozen=True, slots=True)
class Found:
    """One result."""

    url: str
    title: str
    snippet: str
    published: str


class Searcher:
    """Asks one provider."""

    def __init__(self, url: str, *, seconds: float = SECONDS) -> None:
        base = URL(url)
        self._address = base if base.path.rstrip("/").endswith("/search") else base / "search"
        self._seconds = seconds

    async def search(self, query: str, policy: DomainPolicy, location: Mapping[str, Any] | None = None) -> str:
        """The results as text. FetchFailed says what was wrong, for the model."""
        address = self._address.update_query(q=query, format="json", **_place(location))
        was_sent = False
        try:
            async with (
                asyncio.timeout(self._seconds),
                aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False) as session,
                session.get(address, headers=_HEADERS, allow_redirects=False) as response,
            ):
                was_sent = True
                return render(*_results(await _read(response), policy))
        except WebRefused as refused:
            message = str(refused)
        except TimeoutError:
            message = f"the search took longer than {self._seconds:g} seconds."
        except (aiohttp.ClientError, OSError):
            # The address of the provider is the operator's business.
            message = "the search provider can't be reached."
        raise FetchFailed(message, was_sent=was_sent)


_HEADERS = {"user-agent": "managed-agents web_search", "accept": "application/json", "accept-encoding": "gzip, deflate"}


def _place(location: Mapping[str, Any] | None) -> dict[str, str]:
    """What the provider takes of a user's location: its country, as a region of results."""
    locale = _LOCALES.get((location or {}).get("country", ""))
    return {"language": locale} if locale else {}


async def _read(response: aiohttp.ClientResponse) -> Any:
    if response.status != 200:
        raise WebRefused(f"the search provider answered with status {response.status}.")
    body = BoundedBody(response.headers.get("content-encoding"), MAX_BYTES)
    async for chunk in response.content.iter_any():
        body.feed(chunk)
    try:
        return orjson.loads(body.finish())
    except orjson.JSONDecodeError:
        raise WebRefused("the search provider answered with something that is no JSON.") from None


def _results(answer: Any, policy: DomainPolicy) -> tuple[list[Found], int]:
    """The results that may be shown, and how many may not."""
    entries = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        raise WebRefused("the search provider answered without a list of results.")
    found: list[Found] = []
    hidden = 0
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
            continue
        try:
            wanted = read_url(entry["url"])
        except WebRefused:
            continue
        if not policy.permits(wanted.host, urlsplit(wanted.url).path):
            hidden += 1
        elif len(found) < MAX_RESULTS:
            found.append(
                Found(
                    wanted.url,
                    _line(entry.get("title"), MAX_TITLE_CHARACTERS),
                    _line(entry.get("content"), MAX_SNIPPET_CHARACTERS),
                    _line(entry.get("publishedDate"), 40),
                )
            )
    return found, hidden


def render(found: list[Found], hidden: int) -> str:
    """Results as a model reads them."""
    parts = [
        "\n".join(
            line for line in (f"{number}. {each.title or each.url}", each.url, each.published, each.snippet) if line
        )
        for number, each in enumerate(found, 1)
    ]
    if hidden:
        parts.append(f"[{hidden} more results are of domains that this agent may not use]")
    return "\n\n".join(parts) or "Nothing was found."


def _line(value: Any, most: int) -> str:
    return " ".join(value.split())[:most] if isinstance(value, str) else ""
