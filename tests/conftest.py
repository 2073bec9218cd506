"""Fixtures for every test; they live in `kit.testing` and start nothing before a test asks."""

import os

import pytest
from hypothesis import settings

pytest_plugins = ["kit.testing.fixtures", "tests.support.platform"]

# What the machine's owner set must neither change a test nor be spent by it.
for _name in [name for name in os.environ if name.startswith(("MANAGED_AGENTS_", "OTEL_", "ANTHROPIC_", "OPENAI_"))]:
    del os.environ[_name]

# A busy machine is no reason to fail: what must be quick is measured, not guessed from one slow example.
settings.register_profile("house", deadline=None)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What takes longer than `make test` has."""
    parser.addoption("--whole-document", action="store_true", help="try every bound that the API document names")
