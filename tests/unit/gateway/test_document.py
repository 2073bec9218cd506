"""The document: what it describes is what is served, and all that is served."""

from __future__ import annotations

import json
import shlex
from html.parser import HTMLParser
from typing import Any

import pytest

from services.gateway.app import all_operations
from services.gateway.operation import Call, Operation
from services.gateway.operation.dispatch import build_routes
from services.gateway.render.runtime import MATRIX
from tests.unit.gateway.support import clients, http, hub, settings


async def served() -> dict[str, Any]:
    async with http() as client:
        response = await client.get("/openapi.json")
    assert response.status_code == 200
    return response.json()


async def test_every_operation_is_described() -> None:
    document = await served()
    described = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    declared = {(each.path.replace(":path}", "}"), each.method) for each in all_operations(settings(), hub())}
    assert described == declared


async def test_operation_ids_are_unique() -> None:
    document = await served()
    ids = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(set(ids)) == len(ids)


async def test_references_resolve() -> None:
    document = await served()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str):
                resolve(document, reference.removeprefix("#"))
            for member in value.values():
                walk(member)
        elif isinstance(value, list):
            for member in value:
                walk(member)

    walk(document)


async def test_the_contract_matrix_points_into_the_document() -> None:
    document = await served()
    for entry in MATRIX["capabilities"]:
        path, _, pointer = entry["contract"].partition("#")
        assert path == "/openapi.json"
        resolve(document, pointer)


async def test_the_reference_page_needs_nothing_else() -> None:
    async with http() as client:
        page = (await client.get("/docs")).text
    assert "/v1/agents/{agent_id}/versions" in page
    assert "src=" not in page and "https://" not in page


class Reading(HTMLParser):
    """What the page holds, as a reader would find it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.unreachable: list[str] = []
        self.commands: list[str] = []
        self.prose = ""
        self._inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        if tag not in ("meta", "wbr"):
            self._inside.append(tag)
        if tag == "pre" and named.get("tabindex") != "0":
            self.unreachable.append(str(named))
        if named.get("id"):
            self.ids.append(str(named["id"]))
        if (named.get("href") or "").startswith("#"):
            self.links.append(str(named["href"])[1:])

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._inside[-1:] == ["pre"] and data.startswith("curl"):
            self.commands.append(data)
        elif not {"pre", "style", "code"} & set(self._inside):
            self.prose += data


async def test_the_reference_page_reads_well_and_works_without_a_mouse() -> None:
    async with http() as client:
        page = (await client.get("/docs")).text
        document = (await client.get("/openapi.json")).json()
    reading = Reading(page)
    assert "`" not in reading.prose
    assert sorted(reading.ids) == sorted(set(reading.ids))
    assert set(reading.links) <= set(reading.ids) and len(reading.links) > 30
    assert reading.unreachable == [], "what scrolls must take the focus"
    assert reading.links[0] == "content", "the first key press leads past the navigation"
    assert len(reading.commands) == sum(len(methods) for methods in document["paths"].values())


async def test_the_samples_are_commands_with_sound_bodies() -> None:
    async with http() as client:
        page = (await client.get("/docs")).text
    bodies = {
        (each.method, each.path): body
        for each in all_operations(settings(), hub())
        if (body := each.body or each.upload) is not None
    }
    seen = 0
    for command in Reading(page).commands:
        words = shlex.split(command)
        path = next(word for word in words if word.startswith("$BASE_URL")).removeprefix("$BASE_URL")
        assert words[0] == "curl" and "{" not in path, "a brace is a pattern to curl"
        if "-d" not in words:
            continue
        method = words[words.index("-X") + 1]
        (body,) = [body for (verb, declared), body in bodies.items() if verb == method and fits(declared, path)]
        sent = json.loads(words[words.index("-d") + 1])
        assert sent and body.model_validate(sent)
        seen += 1
    assert seen == len(bodies)


def fits(declared: str, path: str) -> bool:
    return len(declared.split("/")) == len(path.split("/")) and all(
        part == other or (part.startswith("{") and other.isupper())
        for part, other in zip(declared.split("/"), path.split("/"), strict=True)
    )


def test_a_route_is_declared_once() -> None:
    async def handler(call: Call) -> bytes:
        return b""

    twice = Operation("GET", "/v1/thing", handler, tag="t", summary="s")
    with pytest.raises(ValueError, match="declared twice"):
        build_routes((twice, twice), clients())


def resolve(document: Any, pointer: str) -> Any:
    value = document
    for part in pointer.split("/")[1:]:
        value = value[part.replace("~1", "/").replace("~0", "~")]
    return value
