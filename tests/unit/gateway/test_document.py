"""The document: what it describes is what is served, and all that is served."""

from __future__ import annotations

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
