"""The document holds: generated requests, sound and unsound, meet no 5xx, no undocumented status, no other shape.

Live streams are left out, since they are meant not to end. Every bound of every field at once takes some minutes, so
`make document` does that; `make test` draws a few requests for each operation.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.further import another

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.fixture
def gateway(fresh_gateway: Gateway) -> Gateway:
    """Everything in it is made, changed and deleted at random."""
    return fresh_gateway


CHECKS = ",".join(
    (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "allow_header_conformance",
        "negative_data_rejection",
    )
)


KEY = "ma_configured_key_of_the_document"
PUBLISHED = ("anthropic-version:2026-10-21", "anthropic-beta:managed-agents-2026-04-01")


@pytest.fixture
def whole(request: pytest.FixtureRequest) -> bool:
    return request.config.getoption("--whole-document")


@pytest.fixture
def wanted(phase: str, whole: bool) -> None:
    """Asked before anything is started."""
    if phase == "coverage" and not whole:
        pytest.skip("every bound of every field: make document")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("headers", "phase"), [((), "coverage"), (PUBLISHED, "fuzzing")], ids=["local coverage", "published fuzzing"]
)
async def test_generated_requests(
    wanted: None,
    gateway: Gateway,
    nats_url: str,
    tmp_path: Path,
    headers: tuple[str, ...],
    phase: str,
    whole: bool,
) -> None:
    # Some of the requests make and delete keys: this one stays, whatever becomes of those.
    async with another(gateway, nats_url, api_key=KEY, inbound_rate_limit="off") as (client, _ring):
        await _run(str(client.base_url), tmp_path, (*headers, f"authorization:Bearer {KEY}"), phase, whole)


async def _run(url: str, tmp_path: Path, headers: tuple[str, ...], phase: str, whole: bool) -> None:
    command = [
        str(Path(sys.executable).with_name("st")),
        "run",
        f"{url.rstrip('/')}/openapi.json",
        *("--checks", CHECKS, "--phases", phase),
        *("--max-examples", "12" if whole else "5", "--seed", "7", "--continue-on-failure", "--no-color"),
        *("--exclude-path-regex", "(/stream|/messages)$", "--request-timeout", "20"),
        *(part for header in headers for part in ("--header", header)),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-12_000:]
