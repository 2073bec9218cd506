"""Fixtures for every test; they live in `kit.testing` and start nothing before a test asks."""

from hypothesis import settings

pytest_plugins = ["kit.testing.fixtures", "tests.support.platform"]

# A busy machine is no reason to fail: what must be quick is measured, not guessed from one slow example.
settings.register_profile("house", deadline=None)
settings.load_profile("house")
