"""A small session folder and a view on it."""

import pytest

from services.worker.tools import FileView, VisibleRoot


@pytest.fixture
def folder(tmp_path):
    for name in ("workspace", "mnt/session/uploads", "mnt/session/outputs"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def work(folder):
    return folder / "workspace"


@pytest.fixture
def files(folder):
    roots = (
        VisibleRoot("/workspace"),
        VisibleRoot("/mnt/session/uploads", writable=False),
        VisibleRoot("/mnt/session/outputs"),
    )
    view = FileView(folder, cwd="/workspace", roots=roots)
    yield view
    view.close()
