"""The area storage.artifacts: the folder or a bucket, its secret never shown, faults by their path."""

from __future__ import annotations

from typing import Any

import pytest

from services.vault.domain import artifacts, candidates, settings
from services.vault.domain.artifacts import ArtifactSettings
from services.vault.domain.errors import InvalidSettings
from services.vault.domain.settings import MASK, Settings

SECRET = "canary-of-the-bucket-0123456789"
OPTIONS: dict[str, Any] = {"bucket": "files", "access_key_id": "AKID", "secret_access_key": SECRET}
ENVIRONMENT = {
    "MANAGED_AGENTS_S3_BUCKET": "files",
    "MANAGED_AGENTS_S3_ENDPOINT": "http://127.0.0.1:9000",
    "MANAGED_AGENTS_S3_REGION": "eu-central-1",
    "MANAGED_AGENTS_S3_PREFIX": "a/b",
    "MANAGED_AGENTS_S3_ACCESS_KEY_ID": "AKID",
    "MANAGED_AGENTS_S3_SECRET_ACCESS_KEY": SECRET,
}


def document(options: Any, provider: str = "s3") -> dict[str, Any]:
    return {
        "schema_version": 1,
        "model": {"vendor": "demo"},
        "storage": {"artifacts": {"provider": provider, "options": options}},
    }


def test_without_a_word_files_lie_in_the_folder() -> None:
    assert settings.from_environment({}).artifacts == ArtifactSettings("local")
    assert Settings().document()["storage"]["artifacts"] == {"provider": "local", "options": {}}


def test_the_environment_may_name_a_bucket() -> None:
    found = settings.from_environment(ENVIRONMENT)
    assert found.artifacts == ArtifactSettings(
        "s3", "files", "eu-central-1", "http://127.0.0.1:9000", "a/b", "AKID", SECRET
    )
    assert SECRET not in repr(found) + str(found.document())


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"MANAGED_AGENTS_S3_BUCKET": "no bucket"}, "MANAGED_AGENTS_S3_BUCKET must be a string"),
        (ENVIRONMENT | {"MANAGED_AGENTS_S3_ENDPOINT": "nowhere"}, "MANAGED_AGENTS_S3_ENDPOINT must be a string"),
        (ENVIRONMENT | {"MANAGED_AGENTS_S3_ACCESS_KEY_ID": ""}, "MANAGED_AGENTS_S3_ACCESS_KEY_ID must be given"),
    ],
)
def test_an_unusable_environment_names_the_variable(environ: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told) as refusal:
        settings.from_environment(environ)
    assert SECRET not in str(refusal.value)


def test_a_saved_bucket_is_shown_without_its_secret_and_kept_by_its_mask() -> None:
    saved = candidates.judge(document(OPTIONS), Settings(), {})
    shown = saved.document()
    assert shown["storage"]["artifacts"]["options"] == {
        "bucket": "files",
        "region": "us-east-1",
        "endpoint": None,
        "prefix": None,
        "access_key_id": "AKID",
        "secret_access_key": MASK,
    }
    assert saved.secret_states()["storage"] == {"artifacts": {"options": {"secret_access_key": "configured"}}}
    again = candidates.judge(shown, saved, {})
    assert again == saved and candidates.changed_paths(saved, again) == []
    assert settings.reopen(shown, saved.secrets()) == saved
    changed = candidates.judge(document(OPTIONS | {"secret_access_key": "another"}), saved, {})
    assert candidates.changed_paths(saved, changed) == ["storage.artifacts.options.secret_access_key"]


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "storage.artifacts.options.bucket"),
        ({"bucket": "a b"}, "storage.artifacts.options.bucket"),
        ({"bucket": "../x"}, "storage.artifacts.options.bucket"),
        (OPTIONS | {"endpoint": "ftp://x"}, "storage.artifacts.options.endpoint"),
        (OPTIONS | {"endpoint": f"https://user:{SECRET}@x"}, "storage.artifacts.options.endpoint"),
        (OPTIONS | {"prefix": "/../x"}, "storage.artifacts.options.prefix"),
        (OPTIONS | {"region": "a b"}, "storage.artifacts.options.region"),
        (OPTIONS | {"secret_access_key": None}, "storage.artifacts.options.secret_access_key"),
        (OPTIONS | {"access_key_id": None}, "storage.artifacts.options.access_key_id"),
        (OPTIONS | {"secret_access_key": f"{SECRET}\n"}, "storage.artifacts.options.secret_access_key"),
        (OPTIONS | {"secret_access_key": "${HOME}"}, "storage.artifacts.options.secret_access_key"),
        (OPTIONS | {"secret_access_key": "${AWS_SECRET_ACCESS_KEY}"}, "storage.artifacts.options.secret_access_key"),
        (OPTIONS | {"acl": "public"}, "storage.artifacts.options.acl"),
        (OPTIONS | {"secret_access_key": MASK}, "storage.artifacts.options.secret_access_key"),
    ],
)
def test_a_faulty_bucket_is_refused_by_its_path(options: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidSettings) as refusal:
        candidates.judge(document(options), Settings(), {})
    assert refusal.value.metadata["path"] == path
    assert SECRET not in refusal.value.message + str(refusal.value.metadata)


def test_a_reference_is_read_when_it_is_used() -> None:
    environ = {"AWS_SECRET_ACCESS_KEY": SECRET}
    options = OPTIONS | {"secret_access_key": "${AWS_SECRET_ACCESS_KEY}"}
    saved = candidates.judge(document(options), Settings(), environ)
    assert saved.artifacts.secret_access_key == "${AWS_SECRET_ACCESS_KEY}"
    assert saved.artifacts.opened(environ).secret_access_key == SECRET
    assert artifacts.LOCAL.opened(environ) == artifacts.LOCAL


def test_a_document_of_a_build_without_files_keeps_them_from_now_on() -> None:
    former = document({}, "none")
    assert settings.reopen(former, {"api_key": ""}).artifacts == ArtifactSettings("local")
