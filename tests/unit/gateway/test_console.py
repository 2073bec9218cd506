"""The console is one page that needs nothing from elsewhere; it opens without a key and asks the API with one."""

from __future__ import annotations

import re

from tests.unit.gateway.support import http


async def test_the_page_opens_without_a_key_and_loads_nothing_from_elsewhere() -> None:
    async with http(api_key="k") as client:
        page = await client.get("/console")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.findall(r"""(?:src|href)=["'](?!/docs)""", page.text)
    assert "https://" not in page.text and "innerHTML" not in page.text


async def test_the_path_of_the_published_name_leads_there() -> None:
    async with http() as client:
        answer = await client.get("/dashboard")
    assert (answer.status_code, answer.headers["location"]) == (307, "/console")
