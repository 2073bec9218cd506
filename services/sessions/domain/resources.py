"""What can be attached to a session, as requests ask for it and as a session keeps it. Pure.

A session keeps its resources as one JSON array in position order, with everything that clients and runners are told:
secrets are never in it. `file_id` is the file that the caller named, `session_file_id` the session's own copy.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from kit.clock import rfc3339
from services.sessions.domain import shape
from services.sessions.domain.mount_paths import check_free, file_path, repository_path
from services.sessions.domain.resource_errors import InvalidResource, ResourceFixed, TooManyResources
from services.sessions.domain.session_errors import ImmutableField, InvalidRequest

FILE, REPOSITORY, MEMORY_STORE = "file", "github_repository", "memory_store"
KINDS = (FILE, REPOSITORY, MEMORY_STORE)
MAX_RESOURCES = 500
MAX_OF_KIND = {FILE: 100, REPOSITORY: 20, MEMORY_STORE: 8}
MAX_ID_CHARACTERS = 256
MAX_URL_CHARACTERS = 2_048
MAX_TOKEN_CHARACTERS = 4_096
MAX_REFERENCE_CHARACTERS = 244
MAX_INSTRUCTIONS_CHARACTERS = 4_096

_FIELDS = {
    FILE: ("type", "file_id", "mount_path"),
    REPOSITORY: ("type", "url", "authorization_token", "checkout", "mount_path"),
    MEMORY_STORE: ("type", "memory_store_id", "mount_path", "access", "instructions"),
}
_FILE_ID = re.compile(r"[A-Za-z0-9_-]+")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# What git refuses in names, and what it would take for something else than a name.
_BAD_REFERENCE = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|\.lock(/|$)|(^|/)\.|\.$|/$|^/|^-|^@$")


@dataclass(frozen=True, slots=True)
class FileRequest:
    """A file to be mounted."""

    field: str
    file_id: str
    mount_path: str
    sandbox_path: str
    kind: str = FILE


@dataclass(frozen=True, slots=True)
class RepositoryRequest:
    """A repository to be cloned."""

    field: str
    url: str
    # A secret: never logged, never stored here.
    token: str | None
    checkout: Any
    mount_path: str
    kind: str = REPOSITORY

    @property
    def sandbox_path(self) -> str:
        """Repositories are given paths of the sandbox."""
        return self.mount_path

    def __repr__(self) -> str:
        return f"RepositoryRequest({self.field}, {self.url})"


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A memory store to be mounted; its path may follow from its name."""

    field: str
    memory_store_id: str
    mount_path: str | None
    access: str
    instructions: str
    kind: str = MEMORY_STORE


ResourceRequest = FileRequest | RepositoryRequest | StoreRequest


def read_resources(value: Any, *, published: bool = False) -> list[ResourceRequest]:
    """The resources that a session is created with; refused by the first that is wrong."""
    requests = [
        read_resource(entry, f"resources.{index}", at_creation=True, published=published)
        for index, entry in enumerate(shape.entries(value, "resources", maximum=MAX_RESOURCES))
    ]
    check_numbers(requests)
    taken: list[str] = []
    for request in requests:
        if isinstance(request, StoreRequest):
            continue
        check_free(request.sandbox_path, taken, f"{request.field}.mount_path")
        taken.append(request.sandbox_path)
    return requests


def read_resource(value: Any, field: str, *, at_creation: bool, published: bool = False) -> ResourceRequest:
    """One resource; `field` is empty for a body of its own."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field or 'The body'} must be an object.", field=field or None)
    dot = f"{field}." if field else ""
    kind = shape.one_of(value.get("type"), f"{dot}type", KINDS)
    if kind == MEMORY_STORE and not at_creation:
        raise ResourceFixed(
            "A memory_store can only be attached when the session is created: send it in `resources` then.",
            field=f"{dot}type",
        )
    shape.known_only(value, field, _FIELDS[kind])
    given = value.get("mount_path")
    mount_path = None if given is None else shape.text(given, f"{dot}mount_path", maximum=MAX_URL_CHARACTERS * 2)
    if kind == FILE:
        return _file(value, field, dot, mount_path, published=published)
    return (_repository if kind == REPOSITORY else _store)(value, field, dot, mount_path)


def read_later_resource(body: Any, *, published: bool = False) -> FileRequest | RepositoryRequest:
    """A resource that is attached to a session that there is."""
    request = read_resource(body, "", at_creation=False, published=published)
    assert not isinstance(request, StoreRequest)
    return request


def check_numbers(requests: Sequence[ResourceRequest], attached: Sequence[dict[str, Any]] = ()) -> None:
    """Refuses more of a kind than a session may have."""
    for kind, most in MAX_OF_KIND.items():
        asked = [request for request in requests if request.kind == kind]
        if asked and len(asked) + sum(each["type"] == kind for each in attached) > most:
            raise TooManyResources(f"A session takes at most {most} resources of type {kind}.", field=asked[-1].field)


def read_rotation(body: dict[str, Any]) -> str:
    """The token of an update. Everything else of a resource is fixed."""
    fixed = next((name for name in body if name != "authorization_token"), None)
    if fixed is not None:
        raise ImmutableField(
            f"{shape.shown(fixed)} can't be changed: only authorization_token can. Attach another resource instead.",
            field=shape.shown(fixed),
        )
    token = _token(body.get("authorization_token"), "authorization_token")
    if token is None:
        raise InvalidRequest("authorization_token is required.", field="authorization_token")
    return token


def file_resource(request: FileRequest, resource_id: str, session_file_id: str, now: datetime) -> dict[str, Any]:
    """A file as the session keeps it."""
    return _resource(request, resource_id, now) | {
        "file_id": request.file_id,
        "session_file_id": session_file_id,
        "mount_path": request.mount_path,
        "sandbox_path": request.sandbox_path,
    }


def repository_resource(request: RepositoryRequest, resource_id: str, now: datetime) -> dict[str, Any]:
    """A repository as the session keeps it."""
    return _resource(request, resource_id, now) | {
        "url": request.url,
        "checkout": request.checkout,
        "mount_path": request.mount_path,
        "sandbox_path": request.sandbox_path,
        "authenticated": request.token is not None,
    }


def store_resource(
    request: StoreRequest, resource_id: str, name: str, description: str, mount_path: str, now: datetime
) -> dict[str, Any]:
    """A memory store as the session keeps it, with its name and description as they are now."""
    return _resource(request, resource_id, now) | {
        "memory_store_id": request.memory_store_id,
        "name": name,
        "description": description,
        "access": request.access,
        "instructions": request.instructions,
        "mount_path": mount_path,
        "sandbox_path": mount_path,
    }


def _resource(request: ResourceRequest, resource_id: str, now: datetime) -> dict[str, Any]:
    return {"id": resource_id, "type": request.kind, "created_at": rfc3339(now), "updated_at": rfc3339(now)}


def taken_paths(attached: Sequence[dict[str, Any]]) -> list[str]:
    """Where the resources of a session stand."""
    return [each.get("sandbox_path") or each["mount_path"] for each in attached]


def find(attached: Sequence[dict[str, Any]], resource_id: str) -> dict[str, Any] | None:
    """One resource of a session."""
    return next((each for each in attached if each["id"] == resource_id), None)


def require_detachable(resource: dict[str, Any]) -> None:
    """A memory store stays."""
    if resource["type"] == MEMORY_STORE:
        raise ResourceFixed("A memory_store stays attached for the life of its session.", field="resource_id")


def require_token(resource: dict[str, Any]) -> None:
    """Only repositories have a token."""
    if resource["type"] != REPOSITORY:
        raise InvalidResource(
            f"A resource of type {resource['type']} has no authorization_token; only {REPOSITORY} has.",
            field="authorization_token",
        )


def _file(value: dict[str, Any], field: str, dot: str, mount_path: str | None, *, published: bool) -> FileRequest:
    file_id = shape.label(value.get("file_id"), f"{dot}file_id", maximum=MAX_ID_CHARACTERS)
    if not _FILE_ID.fullmatch(file_id):
        raise InvalidResource(f"{dot}file_id is no id of a file.", field=f"{dot}file_id")
    path = file_path(mount_path, file_id, f"{dot}mount_path", published=published)
    return FileRequest(field, file_id, mount_path if mount_path and mount_path.strip() else path, path)


def _repository(value: dict[str, Any], field: str, dot: str, mount_path: str | None) -> RepositoryRequest:
    url = _url(value.get("url"), f"{dot}url")
    return RepositoryRequest(
        field,
        url,
        _token(value.get("authorization_token"), f"{dot}authorization_token"),
        _checkout(value.get("checkout"), f"{dot}checkout"),
        repository_path(mount_path, url, f"{dot}mount_path"),
    )


def _store(value: dict[str, Any], field: str, dot: str, mount_path: str | None) -> StoreRequest:
    access, instructions = value.get("access"), value.get("instructions")
    return StoreRequest(
        field,
        shape.label(value.get("memory_store_id"), f"{dot}memory_store_id", maximum=MAX_ID_CHARACTERS),
        mount_path if mount_path and mount_path.strip() else None,
        "read_write" if access is None else shape.one_of(access, f"{dot}access", ("read_write", "read_only")),
        ""
        if instructions is None
        else shape.text(instructions, f"{dot}instructions", maximum=MAX_INSTRUCTIONS_CHARACTERS),
    )


def _url(value: Any, field: str) -> str:
    url = shape.label(value, field, maximum=MAX_URL_CHARACTERS)
    told = f"{field} must be the https address of a repository, without user, query and fragment."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidResource(told, field=field) from None
    # Plain http is only ever served from hosts that the operator named; the runner judges that.
    if parts.scheme not in ("https", "http") or not parts.hostname or "@" in parts.netloc or port == 0:
        raise InvalidResource(told, field=field)
    has_more = parts.query or parts.fragment or not parts.path.strip("/")
    if has_more or not url.isascii() or not url.isprintable() or " " in url or "\\" in url or "/../" in f"{url}/":
        raise InvalidResource(told, field=field)
    return url


def _token(value: Any, field: str) -> str | None:
    if value is None:
        return None
    # What is wrong with a secret is told without showing it.
    if not isinstance(value, str) or len(value) > MAX_TOKEN_CHARACTERS or not _TOKEN.fullmatch(value):
        raise InvalidRequest(
            f"{field} must be a string of 1 to {MAX_TOKEN_CHARACTERS} visible ASCII characters.", field=field
        )
    return value


def _checkout(value: Any, field: str) -> Any:
    """A branch, tag or commit by its name, or the published object; None is the default branch."""
    if value is None:
        return None
    if isinstance(value, str):
        return _reference(value, field)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be a string or an object of type branch or commit.", field=field)
    kind = shape.one_of(value.get("type"), f"{field}.type", ("branch", "commit"))
    if kind == "branch":
        shape.known_only(value, field, ("type", "name"))
        return {"type": kind, "name": _reference(value.get("name"), f"{field}.name")}
    shape.known_only(value, field, ("type", "sha"))
    sha = shape.label(value.get("sha"), f"{field}.sha", maximum=64).lower()
    if not _SHA.fullmatch(sha):
        raise InvalidRequest(f"{field}.sha must be a full commit hash.", field=f"{field}.sha")
    return {"type": kind, "sha": sha}


def _reference(value: Any, field: str) -> str:
    name = shape.label(value, field, maximum=MAX_REFERENCE_CHARACTERS)
    if _BAD_REFERENCE.search(name):
        raise InvalidRequest(f"{field} is no name of a branch, tag or commit.", field=field)
    return name
