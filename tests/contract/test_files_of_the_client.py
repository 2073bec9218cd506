"""Every method that the published client has for files, with every parameter, under strict validation.

A method or a parameter that a new version of the client brings fails here until it has a case.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import anthropic
import pytest

from tests.contract.client_flow import WORKSPACE, Flow, Watched, methods_of
from tests.support.platform import Platform

pytestmark = [pytest.mark.timeout(120)]
BETAS = ["managed-agents-2026-04-01"]
METHODS = methods_of(anthropic.AsyncAnthropic(api_key="none").beta.files)


class Files(Flow):
    """The client's files, noting the parameters that were used."""

    def __init__(self, client: anthropic.AsyncAnthropic) -> None:
        super().__init__(client)
        self.used: dict[str, set[str]] = {}
        self.files = Watched(client.beta.files, "", self.used)

    async def upload(self, content: bytes = b"hello", name: str = "notes.txt") -> Any:
        """One file."""
        return await self.files.upload(file=(name, content, "text/plain"))


@pytest.fixture
async def files(platform: Platform) -> AsyncIterator[Files]:
    async with anthropic.AsyncAnthropic(
        api_key="any", base_url=platform.url, max_retries=0, timeout=60, _strict_response_validation=True
    ) as client:
        yield Files(client)


@pytest.mark.parametrize("method", METHODS)
async def test_a_method_of_the_client_passes_with_every_parameter(files: Files, method: str) -> None:
    case = globals().get(f"_{method}")
    assert case is not None, f"no case for files.{method}"
    await case(files)
    assert METHODS[method] - files.used.get(method, set()) == set()


async def _upload(files: Files) -> None:
    content = os.urandom(3_000_000)
    file = await files.files.upload(
        file=("../a/data.bin", content, "application/octet-stream"), expires_in_seconds=3_600, workspace_id=WORKSPACE
    )
    assert (file.type, file.filename, file.size_bytes) == ("file", "data.bin", len(content))
    assert file.mime_type == "application/octet-stream" and file.downloadable is True and file.scope is None
    assert file.expires_at - file.created_at == timedelta(hours=1)
    assert datetime.now(UTC) - file.created_at < timedelta(minutes=1)
    downloaded = await files.files.download(file.id)
    assert await downloaded.read() == content


async def _list(files: Files) -> None:
    ids = [(await files.upload(name=f"{number}.txt")).id for number in range(5)][::-1]
    page = await files.files.list(limit=2, workspace_id=WORKSPACE)
    assert [file.id for file in page.data] == ids[:2] and page.has_next_page()
    further = await files.files.list(limit=2, page=page.next_page)
    assert [file.id for file in further.data] == ids[2:4]
    walked = [file.id async for file in files.files.list(limit=2)]
    assert walked[:5] == ids
    some = await files.files.list(ids=[ids[3], ids[1], "file_unknown"])
    assert {file.id for file in some.data} == {ids[1], ids[3]} and not some.has_next_page()
    session = await files.session()
    for scope in (session.id, "sess_unknown"):
        scoped = await files.files.list(scope_id=scope, betas=BETAS)
        assert scoped.data == [] and scoped.next_page is None
    with pytest.raises(anthropic.BadRequestError):
        await files.files.list(scope_id=session.id)


async def _retrieve_metadata(files: Files) -> None:
    file = await files.upload()
    again = await files.files.retrieve_metadata(file.id, workspace_id=WORKSPACE)
    assert again == file and (again.mime_type, again.size_bytes) == ("text/plain", 5)
    with pytest.raises(anthropic.NotFoundError):
        await files.files.retrieve_metadata("file_unknown")


async def _download(files: Files) -> None:
    file = await files.upload(b"0123456789")
    answer = await files.files.download(file.id, workspace_id=WORKSPACE)
    assert await answer.read() == b"0123456789"
    part = await files.files.download(file.id, extra_headers={"range": "bytes=2-4"})
    assert await part.read() == b"234"
    with pytest.raises(anthropic.NotFoundError):
        await files.files.download("file_unknown")


async def _delete(files: Files) -> None:
    file = await files.upload()
    deleted = await files.files.delete(file.id, workspace_id=WORKSPACE)
    assert (deleted.id, deleted.type) == (file.id, "file_deleted")
    for call in (files.files.delete, files.files.download, files.files.retrieve_metadata):
        with pytest.raises(anthropic.NotFoundError):
            await call(file.id)


async def test_a_file_that_is_too_large_is_told_and_not_sent_again(files: Files) -> None:
    client = files.client.with_options(max_retries=2)
    for size in (10 * 1024 * 1024 + 1, 11 * 1024 * 1024):
        with pytest.raises(anthropic.APIStatusError) as told:
            await client.beta.files.upload(file=("a.bin", os.urandom(size)))
        assert told.value.status_code == 413 and told.value.type == "request_too_large"


async def test_a_retried_upload_is_one_file(files: Files) -> None:
    first = await files.files.upload(file=("a.txt", b"once"), extra_headers={"x-stainless-retry-count": "0"})
    again = await files.files.upload(file=("a.txt", b"once"), extra_headers={"x-stainless-retry-count": "1"})
    assert again.id == first.id
