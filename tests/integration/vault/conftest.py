"""What the files of this folder start from."""

import pytest

from kit.testing.fixtures import MakeDatabase


@pytest.fixture
def make_database(make_swept_database: MakeDatabase) -> MakeDatabase:
    """Databases as good as fresh ones."""
    return make_swept_database
