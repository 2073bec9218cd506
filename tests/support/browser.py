"""A headless Chromium for tests: the one that `make clients` unpacked, started with its own few libraries."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Page, async_playwright

FOLDER = Path(__file__).parents[1] / "clients" / "chromium" / "node_modules" / ".browser"
# No sandbox of its own: tests may run as root, and it only opens pages of ours.
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--single-process", "--no-zygote"]


@asynccontextmanager
async def page() -> AsyncIterator[Page]:
    """A page in a browser of its own. What its scripts fail with, or try to load from elsewhere, fails the test."""
    program = FOLDER / "chromium"
    assert program.exists(), f"there is no {program}; `make clients` prepares it"
    faults: list[str] = []
    environment = os.environ | {"LD_LIBRARY_PATH": str(FOLDER / "al2023" / "lib")}
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=_ARGUMENTS, env=environment)
        try:
            made = await browser.new_page()
            made.on("pageerror", lambda error: faults.append(str(error)))
            made.on(
                "console", lambda message: faults.append(message.text) if "Content Security" in message.text else None
            )
            yield made
        finally:
            await browser.close()
    assert not faults, faults
