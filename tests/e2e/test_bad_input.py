"""Bad input is refused by a 4xx that names the field; nothing is stored, nothing fails inside.

Every route that writes is tried with everything that can be wrong about each field of a sound body: the set of routes
comes from the served document, so a new one has to be added here.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import psycopg
import pytest

from kit.testing import await_until
from tests.support.bodies import BODIES, OPTIONAL, TEXT, bodies_of, one_of_each
from tests.support.platform import Platform, running_platform
from tests.support.rows import database_of, snapshot, turns_under_way

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# Where a caller may say anything: a JSON schema, a bag of its own, headers for an agent of its own.
FREE = ("input_schema", "metadata", "headers")
# What a worker got may be anything.
UNJUDGED = "result"
WRONG_IDS = (
    "x",
    "sess_",
    "agent_01k0000000000000000000000",
    "%00",
    "%2e%2e",
    "a%20b",
    "%ff%fe",
    "%F0%9F%98%80",
    "9" * 300,
)
Path = tuple[Any, ...]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One of its own: what other tests left is swept, settled and handed out again minutes later."""
    with running_platform(tmp_path_factory.mktemp("untouched") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def known(platform: Platform) -> dict[str, str]:
    """One resource of each kind."""
    return one_of_each(platform.url)


class Untouched:
    """Sends requests, and holds that none of them changed a row or caused a fault."""

    def __init__(self, platform: Platform, rows: psycopg.Connection, known: dict[str, str]) -> None:
        self.http = httpx2.Client(base_url=platform.url, timeout=30)
        self.known = known
        self._platform = platform
        self._rows = rows
        self._before = snapshot(rows)
        self._logged = len(platform.logs().splitlines())

    def refuse(self, method: str, path: str, what: str, *, names: tuple[str, ...] = (), **request: Any) -> None:
        """The request is refused in the envelope, by a message that holds one of the names."""
        answer = self.http.request(method, path, **request)
        assert 400 <= answer.status_code < 500, f"{what}: {answer.status_code} {answer.text[:500]}"
        assert answer.headers["content-type"] == "application/json", what
        body = answer.json()
        assert body["type"] == "error" and body["request_id"] == answer.headers["request-id"], what
        error = body["error"]
        assert error["type"] and error["code"] and error["message"], what
        assert not names or any(name in error["message"] for name in names), f"{what}: {error}"

    def path(self, template: str) -> str:
        """The path with ids that exist."""
        return re.sub(r"{(\w+)}", lambda found: self.known[found[1]], template)

    def check(self) -> None:
        """Nothing was stored and nothing failed."""
        now = snapshot(self._rows)
        assert [table for table, rows in now.items() if self._before.get(table) != rows] == []
        faults = []
        for line in self._platform.logs().splitlines()[self._logged :]:
            entry = json.loads(line)
            if entry["level"] in ("error", "critical"):
                faults.append(line)
        assert not faults


def _still(rows: psycopg.Connection) -> Callable[[], bool]:
    """Whether what earlier tests began has come to rest: services hear of it from one another a little later."""
    seen: list[Any] = [None]

    def is_still() -> bool:
        seen.append(snapshot(rows))
        return seen[-1] == seen[-2]

    return is_still


@pytest.fixture
def untouched(platform: Platform, known: dict[str, str]) -> Iterator[Untouched]:
    """A client whose requests must leave no trace."""
    with database_of(platform) as rows:
        await_until(lambda: turns_under_way(rows) == 0, timeout=60)
        await_until(_still(rows), timeout=60)
        one = Untouched(platform, rows, known)
        with one.http:
            yield one
            one.check()


def _places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value inside a body with the way to it."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield (*path, name), member
        if name != "input_schema":
            yield from _places(member, (*path, name))


def _with(body: Any, path: Path, value: Any) -> Any:
    changed = copy.deepcopy(body)
    holder = changed
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = value
    return changed


def _wrong_type(value: Any) -> Any:
    return {str: 5, int: "x", float: "x", bool: "yes", list: 5, dict: 5}[type(value)]


def _mutations(body: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...], dict[str, Any]]]:
    # Of an upload all but the content is small.
    too_long = 20_001 if "encoding" in body else 1_000_001
    for path, value in _places(body):
        if UNJUDGED in path and "worker_id" in body:
            continue
        names = tuple(str(name) for name in path if isinstance(name, str))[-2:]
        told = ".".join(map(str, path))
        anywhere = tuple(name for name in path if isinstance(name, str))
        yield f"{told} of a wrong type", names, _with(body, path, _wrong_type(value))
        if isinstance(value, str):
            yield f"{told} with NUL", names, _with(body, path, value + "\0")
            yield f"{told} too long", anywhere, _with(body, path, "x" * too_long)
        if type(value) in (int, float):
            yield f"{told} below what it may be", names, _with(body, path, -1)
        if isinstance(value, list):
            entry = value[0] if value else "x"
            yield f"{told} with too many entries", names, _with(body, path, [entry] * 1001)
            yield f"{told} with entries of a wrong type", names, _with(body, path, [5])
        if isinstance(value, dict) and not set(FREE) & set(path):
            yield f"{told} with an unknown field", ("surprise",), _with(body, (*path, "surprise"), "x")
        if path[-1] in FREE:
            deep: Any = "x"
            for _ in range(60):
                deep = {"a": deep}
            yield f"{told} nested too deep", (*names, "body"), _with(body, path, deep)
            yield f"{told} with a key with NUL", (*names, "names"), _with(body, (*path, "a\0"), "x")
    yield "an unknown field", ("surprise",), {**body, "surprise": 1}


def test_every_operation_that_takes_a_body_is_tried(platform: Platform) -> None:
    document = httpx2.get(f"{platform.url}/openapi.json").json()
    served = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    }
    assert served == set(BODIES)


@pytest.mark.parametrize("operation", BODIES)
def test_each_field_is_judged(untouched: Untouched, operation: str) -> None:
    method, template = operation.split()
    sent = 0
    bodies = bodies_of(operation, untouched.known)
    if "events" in bodies[0]:
        bodies = [{"events": [event]} for event in bodies[0]["events"]]
    for body in bodies:
        for what, names, changed in _mutations(body):
            untouched.refuse(method, untouched.path(template), what, names=names, json=changed)
            sent += 1
    assert sent >= min(8, 3 * len(bodies[0]))


@pytest.mark.parametrize("operation", BODIES)
def test_bodies_that_are_no_object_are_refused(untouched: Untouched, operation: str) -> None:
    method, template = operation.split()
    sound = json.dumps(bodies_of(operation, untouched.known)[0]).encode()
    bodies = {
        "nothing": b"",
        "blank": b" \n",
        "cut off": sound[:-1],
        "two values": sound + sound,
        "no UTF-8": sound[:-1] + b', "x": "\xff\xfe"}',
        "a lone surrogate": b'{"title": "\\ud800", "name": "\\ud800", "content": "\\ud800", "events": "\\ud800"}',
        "a bare NUL": b'{"title": "\x00"}',
        "not a number": b'{"title": NaN}',
        "an endless number": b'{"title": 1e999, "name": 1e999, "content": 1e999, "events": 1e999}',
        "a huge number": b'{"title": 1%b, "name": 1%b, "content": 1%b, "events": 1%b}' % ((b"0" * 400,) * 4),
        "single quotes": b"{'title': 'x'}",
        "a comment": b'{} // "x"',
        "deep lists": b"[" * 100_000,
        "deep objects": b'{"a":' * 100_000,
        "deep and closed": b'{"metadata":' + b'{"a":' * 900 + b"1" + b"}" * 901,
        **{name: name.encode() for name in ("null", "true", "5", '"x"', "[]")},
    }
    for what, content in bodies.items():
        if operation in OPTIONAL and not content.strip():
            continue
        untouched.refuse(
            method, untouched.path(template), what, content=content, headers={"content-type": "application/json"}
        )


@pytest.mark.parametrize("operation", BODIES)
def test_bodies_have_a_limit_whether_or_not_they_tell_their_size(untouched: Untouched, operation: str) -> None:
    method, template = operation.split()
    piece = b" " * 1_048_576
    json_type = {"content-type": "application/json"}
    for told in (True, False):
        pieces = iter([b'{"a":"', *[piece] * (43 if "/skills" in operation else 17), b'"}'])
        content = b"".join(pieces) if told else pieces
        untouched.refuse(
            method, untouched.path(template), "too large", names=("body",), content=content, headers=json_type
        )
    wrong = {"content-type": "text/plain"}
    untouched.refuse(method, untouched.path(template), "another type", content=b"{}", headers=wrong)
    packed = {**json_type, "content-encoding": "gzip"}
    untouched.refuse(method, untouched.path(template), "compressed", content=b"{}", headers=packed)


# Settings have a revision instead: a repeated save is refused by it. Of a key no answer is kept, since its secret is in
# it: a repeat makes another one.
@pytest.mark.parametrize(
    "operation",
    [
        name
        for name in BODIES
        if "/v1/x/" not in name and not name.endswith("-keys") and ("{" not in name or name.endswith(("s", "rotate")))
    ],
)
def test_keys_of_repeats_have_a_form(untouched: Untouched, operation: str) -> None:
    method, template = operation.split()
    if "{" in template and not template.endswith(
        ("events", "messages", "credentials", "memories", "versions", "artifacts", "resources", "rotate")
    ):
        return
    for key in ("", "x" * 300):
        headers = {"idempotency-key": key}
        body = bodies_of(operation, untouched.known)[0]
        untouched.refuse(
            method, untouched.path(template), f"key {key!r}", names=("dempotency",), json=body, headers=headers
        )


def _operations(platform: Platform) -> Iterator[tuple[str, str, dict[str, Any]]]:
    document = httpx2.get(f"{platform.url}/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_wrong_ids_are_not_found_or_refused(untouched: Untouched, platform: Platform) -> None:
    tried = 0
    for method, template, _ in _operations(platform):
        for wrong in WRONG_IDS if "{" in template else ():
            path = re.sub(r"{\w+}", wrong, template)
            operation = f"{method} {template}"
            body = bodies_of(operation, untouched.known)[0] if operation in BODIES else None
            if operation.endswith("/events") and body is not None:
                body = {"events": body["events"][:1]}
            untouched.refuse(method, path, f"{method} {path}", **({"json": body} if body is not None else {}))
            tried += 1
    assert tried > 100


def test_wrong_cursors_and_unknown_parameters_are_refused(untouched: Untouched, platform: Platform) -> None:
    foreign = untouched.http.get("/v1/agents?limit=1").json()["next_page"]
    tried = 0
    for method, template, operation in _operations(platform):
        path = untouched.path(template)
        named = [entry["name"] for entry in operation.get("parameters", ()) if entry["in"] == "query"]
        # Routes that read no parameters ignore all, as `api.md` says.
        if named and method == "GET":
            cursors = ["x", "%00", "e30", "x" * 10_000, "%F0%9F%98%80", "-1"]
            if foreign and template != "/v1/agents":
                cursors.append(foreign)
            for cursor in cursors if "page" in named else ():
                untouched.refuse(method, f"{path}?page={cursor}", f"{path} page {cursor[:20]}", names=("page", "NUL"))
                tried += 1
            for value in ("0", "-1", "x", "1e3", "99999999999999999999", "1.0") if "limit" in named else ():
                untouched.refuse(method, f"{path}?limit={value}", f"{path} limit {value}", names=("limit",))
            untouched.refuse(method, f"{path}?surprise=1", f"{path} surprise", names=("surprise",))
    events = untouched.path("/v1/sessions/{session_id}/events")
    for wrong in ("sevt_x", "%00", "x" * 300):
        untouched.refuse("GET", f"{events}?after_id={wrong}", f"after_id {wrong}", names=("after_id", "NUL"))
    for wrong in ("x", "-1", "1.5", "9" * 30):
        untouched.refuse("GET", f"{events}/stream", "cursor", names=("ast-",), headers={"last-event-id": wrong})
    assert tried > 20


def test_unknown_routes_and_methods_answer_in_the_envelope(untouched: Untouched) -> None:
    for method, path in (
        ("POST", "/v1/nothing"),
        ("DELETE", "/v1/agents"),
        ("PATCH", "/v1/sessions"),
        ("GET", "/v1/%00"),
    ):
        untouched.refuse(method, path, f"{method} {path}")


def test_a_batch_is_stored_whole_or_not_at_all(untouched: Untouched) -> None:
    path = untouched.path("/v1/sessions/{session_id}/events")
    sound, wrong = {"type": "user.message", "content": "hello"}, {"type": "user.massage", "content": "hello"}
    untouched.refuse("POST", path, "one of three", names=("events.1.type",), json={"events": [sound, wrong, sound]})
    answer = {"type": "user.custom_tool_result", "custom_tool_use_id": "sevt_x", "content": TEXT}
    untouched.refuse(
        "POST", path, "an answer to nothing", names=("custom_tool_use_id",), json={"events": [sound, answer]}
    )
    many = {"agent": untouched.known["agent_id"], "initial_events": [sound] * 51}
    untouched.refuse("POST", "/v1/sessions", "51 events", names=("initial_events",), json=many)
    some = {"agent": untouched.known["agent_id"], "initial_events": [sound, wrong]}
    untouched.refuse("POST", "/v1/sessions", "one of two", names=("initial_events.1.type",), json=some)
