"""Rules on mount paths: each has its refusal, what passes stays below its root, and no two resources share a place."""

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import DomainError
from services.sessions.domain.mount_paths import (
    check_free,
    check_path,
    file_path,
    repository_name,
    repository_path,
    store_path,
)
from services.sessions.domain.resource_errors import InvalidMountPath, MountPathTaken

UPLOADS = "/mnt/session/uploads"


@pytest.mark.parametrize(
    ("given_path", "expected"),
    [
        ("/data.csv", f"{UPLOADS}/data.csv"),
        ("/src/main.py", f"{UPLOADS}/src/main.py"),
        (None, f"{UPLOADS}/file_1"),
        ("", f"{UPLOADS}/file_1"),
        ("  ", f"{UPLOADS}/file_1"),
        ("/uploads/file.txt", f"{UPLOADS}/uploads/file.txt"),
        ("/mnt/session/uploads/a", f"{UPLOADS}/mnt/session/uploads/a"),
        ("/Übung/…", f"{UPLOADS}/Übung/…"),
    ],
)
def test_the_table_of_file_paths(given_path: str | None, expected: str) -> None:
    assert file_path(given_path, "file_1", "mount_path") == expected


def test_in_the_published_contract_a_path_of_the_sandbox_stays() -> None:
    assert file_path(f"{UPLOADS}/a/b", "file_1", "mount_path", published=True) == f"{UPLOADS}/a/b"
    assert file_path("/a/b", "file_1", "mount_path", published=True) == f"{UPLOADS}/a/b"


@pytest.mark.parametrize(
    "wrong",
    [
        "data.csv",
        "./data.csv",
        "/",
        "//",
        "/a//b",
        "/a/",
        "//a",
        "/.",
        "/..",
        "/a/../b",
        "/a/./b",
        "/a/..",
        "/a\\b",
        "\\a",
        "/a\x00b",
        "/a\nb",
        "/a\x7f",
        "/" + "a" * 256,
        "/" + "/".join(["a" * 200] * 6),
        "/\ud800",
        "~/a",
        "C:/a",
    ],
)
def test_each_rule_refuses(wrong: str) -> None:
    with pytest.raises(InvalidMountPath) as refused:
        file_path(wrong, "file_1", "resources.0.mount_path")
    assert (refused.value.reason, refused.value.field) == ("INVALID_MOUNT_PATH", "resources.0.mount_path")


@given(st.one_of(st.text(max_size=60), st.text(alphabet="/.\\ab\x00", max_size=30).map(lambda text: f"/{text}")))
def test_what_passes_names_one_place_below_its_root(path: str) -> None:
    try:
        checked = check_path(path, "mount_path")
    except DomainError:
        return
    assert checked == path
    mapped = file_path(path, "file_1", "mount_path") if path.strip() else f"{UPLOADS}/x"
    assert posixpath.normpath(mapped) == mapped and mapped.startswith(f"{UPLOADS}/")
    assert mapped == UPLOADS + path and "\x00" not in mapped


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://github.com/owner/repo", "repo"),
        ("https://github.com/owner/repo.git", "repo"),
        ("https://github.com/owner/repo/", "repo"),
        ("https://github.com/owner/%2e%2e", "2e-2e"),
        ("https://github.com/owner/...", "repository"),
    ],
)
def test_a_repository_without_a_path_is_named_by_its_address(url: str, expected: str) -> None:
    assert repository_name(url) == expected
    assert repository_path(None, url, "mount_path") == f"/workspace/{expected}"


@pytest.mark.parametrize("wrong", ["/repo", "/workspace", "/workspacex/a", "/mnt/session/uploads/a", "/workspace/../a"])
def test_repositories_lie_below_the_workspace(wrong: str) -> None:
    with pytest.raises(InvalidMountPath):
        repository_path(wrong, "https://github.com/o/r", "mount_path")
    assert repository_path("/workspace/a/b", "https://github.com/o/r", "mount_path") == "/workspace/a/b"


def test_stores_are_named_by_their_names_without_a_clash() -> None:
    assert store_path(None, "Project Notes!", [], "x") == "/mnt/memory/project-notes"
    assert store_path(None, "…", [], "x") == "/mnt/memory/store"
    taken = ["/mnt/memory/a", "/mnt/memory/a-2"]
    assert store_path(None, "A", taken, "x") == "/mnt/memory/a-3"
    assert store_path("/mnt/memory/own", "A", taken, "x") == "/mnt/memory/own"
    with pytest.raises(InvalidMountPath):
        store_path("/workspace/a", "A", [], "x")


@pytest.mark.parametrize(
    ("path", "is_free"),
    [("/a", False), ("/a/b", False), ("/a/b/c", False), ("/a/c", True), ("/ab", True), ("/a/bc", True)],
)
def test_no_two_resources_lie_within_each_other(path: str, is_free: bool) -> None:
    if is_free:
        check_free(path, ["/a/b"], "mount_path")
        return
    with pytest.raises(MountPathTaken):
        check_free(path, ["/a/b"], "mount_path")
