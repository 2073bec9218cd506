"""Fixtures for every test; they live in `kit.testing` and start nothing before a test asks."""

pytest_plugins = ["kit.testing.fixtures", "tests.support.platform"]
