"""Sandboxes for many tests of one host."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

from services.worker.sandbox import bubblewrap, isolation


@contextmanager
def known_host(folder: Path) -> Iterator[None]:
    """What every manager finds out about its host is found out once, and its copy of /etc made once, in this folder.

    It takes longer than most tests of a sandbox, and is the same for all of them. Whether bubblewrap works is still
    tried by each manager, in its own folder.
    """
    prepare_etc = bubblewrap.prepare_etc

    @cache
    def made() -> Path:
        return prepare_etc(folder)

    def own_etc(root: Path) -> Path:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return made()

    with (
        patch.object(isolation, "_probe_host", cache(isolation._probe_host)),
        patch.object(bubblewrap, "prepare_etc", own_etc),
    ):
        yield
