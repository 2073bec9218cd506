"""What can be attached: shapes, limits, duplicates; and secrets that no refusal repeats."""

from typing import Any

import pytest

from kit.errors import DomainError
from services.sessions.domain.resources import read_resource, read_resources, read_rotation

FILE = {"type": "file", "file_id": "file_1"}
REPOSITORY = {"type": "github_repository", "url": "https://github.com/owner/repo", "authorization_token": "ghp_x"}
STORE = {"type": "memory_store", "memory_store_id": "memstore_1"}
SECRET = "ghp_canary 0123456789"


def refusal(call: Any, *arguments: Any, **options: Any) -> DomainError:
    with pytest.raises(DomainError) as refused:
        call(*arguments, **options)
    return refused.value


def test_the_example_of_the_documentation_is_taken() -> None:
    file, repository, store = read_resources(
        [
            {"type": "file", "file_id": "file_abc123", "mount_path": "/uploads/input.txt"},
            {**REPOSITORY, "checkout": "main", "mount_path": "/workspace/repo"},
            {**STORE, "mount_path": "/mnt/memory/project-notes", "access": "read_write", "instructions": "Notes."},
        ]
    )
    assert (file.kind, repository.kind, store.kind) == ("file", "github_repository", "memory_store")
    assert file.sandbox_path == "/mnt/session/uploads/uploads/input.txt"
    assert (repository.sandbox_path, repository.checkout, repository.token) == ("/workspace/repo", "main", "ghp_x")


@pytest.mark.parametrize(
    ("entry", "field", "reason"),
    [
        (1, "resources.0", "INVALID_REQUEST"),
        ({}, "resources.0.type", "INVALID_REQUEST"),
        ({"type": "folder"}, "resources.0.type", "INVALID_REQUEST"),
        ({"type": "file"}, "resources.0.file_id", "INVALID_REQUEST"),
        ({**FILE, "file_id": "../x"}, "resources.0.file_id", "INVALID_RESOURCE"),
        ({**FILE, "url": "x"}, "resources.0.url", "UNKNOWN_FIELD"),
        ({**FILE, "mount_path": 1}, "resources.0.mount_path", "INVALID_REQUEST"),
        ({**FILE, "mount_path": "a"}, "resources.0.mount_path", "INVALID_MOUNT_PATH"),
        ({**REPOSITORY, "url": "git@github.com:o/r"}, "resources.0.url", "INVALID_RESOURCE"),
        ({**REPOSITORY, "url": "file:///etc"}, "resources.0.url", "INVALID_RESOURCE"),
        ({**REPOSITORY, "url": "ext::sh"}, "resources.0.url", "INVALID_RESOURCE"),
        ({**REPOSITORY, "url": "https://user:pw@github.com/o/r"}, "resources.0.url", "INVALID_RESOURCE"),
        ({**REPOSITORY, "url": "https://github.com/o/r?x=1"}, "resources.0.url", "INVALID_RESOURCE"),
        ({**REPOSITORY, "url": "https://github.com/"}, "resources.0.url", "INVALID_RESOURCE"),
        ({**REPOSITORY, "url": "https://github.com/o/../r"}, "resources.0.url", "INVALID_RESOURCE"),
        ({**REPOSITORY, "url": "https://github.com:99999/o/r"}, "resources.0.url", "INVALID_RESOURCE"),
        ({**REPOSITORY, "checkout": 1}, "resources.0.checkout", "INVALID_REQUEST"),
        ({**REPOSITORY, "checkout": "--upload-pack=x"}, "resources.0.checkout", "INVALID_REQUEST"),
        ({**REPOSITORY, "checkout": "a..b"}, "resources.0.checkout", "INVALID_REQUEST"),
        ({**REPOSITORY, "checkout": "a b"}, "resources.0.checkout", "INVALID_REQUEST"),
        ({**REPOSITORY, "checkout": {"type": "tag", "name": "x"}}, "resources.0.checkout.type", "INVALID_REQUEST"),
        ({**REPOSITORY, "checkout": {"type": "commit", "sha": "main"}}, "resources.0.checkout.sha", "INVALID_REQUEST"),
        ({**REPOSITORY, "mount_path": "/repo"}, "resources.0.mount_path", "INVALID_MOUNT_PATH"),
        ({**STORE, "access": "write"}, "resources.0.access", "INVALID_REQUEST"),
        ({**STORE, "instructions": "x" * 4097}, "resources.0.instructions", "INVALID_REQUEST"),
    ],
)
def test_unsound_resources_are_refused_by_name(entry: Any, field: str, reason: str) -> None:
    refused = refusal(read_resources, [entry])
    assert (refused.field, refused.reason) == (field, reason)


@pytest.mark.parametrize("checkout", [None, "main", "feature/x", "v1.0", "0123abc", {"type": "branch", "name": "main"}])
def test_branches_tags_and_commits_are_taken(checkout: Any) -> None:
    assert read_resources([{**REPOSITORY, "checkout": checkout}])[0].checkout == checkout


def test_a_commit_is_a_full_hash() -> None:
    (request,) = read_resources([{**REPOSITORY, "checkout": {"type": "commit", "sha": "A" * 40}}])
    assert request.checkout == {"type": "commit", "sha": "a" * 40}


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([FILE, FILE], "MOUNT_PATH_TAKEN"),
        ([{**FILE, "mount_path": "/a"}, {**FILE, "mount_path": "/a/b"}], "MOUNT_PATH_TAKEN"),
        ([REPOSITORY, {**REPOSITORY, "mount_path": "/workspace/repo/sub"}], "MOUNT_PATH_TAKEN"),
        ([{**FILE, "mount_path": f"/{number}"} for number in range(101)], "TOO_MANY_RESOURCES"),
        ([{**STORE, "memory_store_id": f"memstore_{number}"} for number in range(9)], "TOO_MANY_RESOURCES"),
        ([FILE] * 501, "INVALID_REQUEST"),
    ],
)
def test_clashes_and_numbers_are_refused(entries: list[Any], reason: str) -> None:
    assert refusal(read_resources, entries).reason == reason


def test_a_hundred_files_and_eight_stores_are_taken() -> None:
    files = [{**FILE, "mount_path": f"/{number}"} for number in range(100)]
    stores = [{**STORE, "memory_store_id": f"memstore_{number}"} for number in range(8)]
    assert len(read_resources([*files, *stores])) == 108


def test_a_store_is_not_attached_later() -> None:
    assert refusal(read_resource, STORE, "", at_creation=False).reason == "RESOURCE_FIXED"


@pytest.mark.parametrize("token", [SECRET, SECRET * 500, f"{SECRET}\n", 5, "", "ü"])
def test_a_refused_token_is_not_repeated(token: Any) -> None:
    for refused in (
        refusal(read_resources, [{**REPOSITORY, "authorization_token": token}]),
        refusal(read_rotation, {"authorization_token": token}),
    ):
        assert "canary" not in str(refused.message) + repr(refused.metadata)
        assert refused.field is not None and refused.field.endswith("authorization_token")


def test_a_request_shows_no_token() -> None:
    assert "ghp_x" not in repr(read_resources([REPOSITORY]))


@pytest.mark.parametrize("name", ["url", "checkout", "mount_path", "file_id", "anything"])
def test_only_the_token_can_change(name: str) -> None:
    refused = refusal(read_rotation, {"authorization_token": "ghp_y", name: "x"})
    assert (refused.reason, refused.field) == ("IMMUTABLE_FIELD", name)
    assert refusal(read_rotation, {}).reason == "INVALID_REQUEST"
