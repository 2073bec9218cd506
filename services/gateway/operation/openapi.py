"""Renders `/openapi.json` from the operation table, so it tells what is served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from .declaration import Operation
from .query import Parameter

REFERENCE = "#/components/schemas/{model}"
DESCRIPTION = (
    "Agents, environments, sessions and their event logs. Callers that send `anthropic-version`, `anthropic-beta` "
    "or `x-api-key` are held to the published contract and read its shapes; everyone else reads the local ones."
)
_ERRORS = {
    400: "The request is wrong; `error.message` names the field and what is accepted.",
    401: "No credential, an unknown one, or two of them.",
    403: "The credential may not do this.",
    404: "Nothing with this id, or no such route.",
    405: "The path is not served with this method.",
    409: "The request lost against the current state.",
    413: "The body is larger than the route takes.",
    415: "The body is not declared as JSON.",
    416: "The range begins behind the end; `content-range` tells where that is.",
    429: "Too many requests for now; see `retry-after`.",
    500: "A fault of the platform; its log has the cause under the request id.",
    501: "Not available in this build.",
    502: "The turn behind the request failed; `error.message` says why.",
    503: "A part of the platform can't be reached; see `retry-after`.",
    504: "The platform took too long.",
}
_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message", "code"],
            "properties": {
                "type": {"type": "string", "description": "A small closed set; branch on `code`."},
                "message": {"type": "string"},
                "code": {"type": "string", "description": "Stable reason."},
                "details": {"description": "More about the refusal, where there is more."},
            },
        },
        "request_id": {"type": "string"},
    },
}


def document(operations: Sequence[Operation], *, title: str, version: str, authentication: bool) -> dict[str, Any]:
    """The whole OpenAPI document."""
    inputs = {body for operation in operations if (body := operation.body or operation.upload) is not None}
    outputs = {operation.response for operation in operations if operation.response is not None}
    modes: list[tuple[type[BaseModel], Any]] = [(model, "validation") for model in sorted(inputs, key=_name)]
    modes += [(model, "serialization") for model in sorted(outputs, key=_name)]
    references, definitions = models_json_schema(modes, ref_template=REFERENCE)
    schemas = dict(definitions.get("$defs", {}))
    schemas["Error"] = _ERROR_SCHEMA
    paths: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()
    for operation in operations:
        methods = paths.setdefault(_public(operation.path), {})
        methods[operation.method.lower()] = {"operationId": _id(operation, taken), **_operation(operation, references)}
    rendered: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {str(status): _error_response(text) for status, text in _ERRORS.items()},
            "headers": {"request-id": {"schema": {"type": "string"}, "description": "Names the request in the log."}},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
    if authentication:
        rendered["security"] = [{"bearer": []}, {"api_key": []}]
    return rendered


def _operation(operation: Operation, references: dict[Any, Any]) -> dict[str, Any]:
    rendered: dict[str, Any] = {
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [
            *_path_parameters(_public(operation.path)),
            *(_query_parameter(each) for each in operation.query or ()),
            *_header_parameters(operation),
        ],
        "responses": _responses(operation, references),
    }
    if operation.description:
        rendered["description"] = operation.description
    body = operation.body or operation.upload
    if body is not None:
        accepted: dict[str, Any] = {"application/json": {"schema": references[(body, "validation")]}}
        if operation.form is not None:
            accepted["multipart/form-data"] = {"schema": operation.form}
        rendered["requestBody"] = {"required": not operation.optional_body, "content": accepted}
    if operation.needs_credential:
        # The least role of a key that may, see `admission/roles.py`.
        rendered["x-needs-role"] = operation.role
    else:
        rendered["security"] = []
    return rendered


def _responses(operation: Operation, references: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.response is not None:
        content["application/json"] = {"schema": references[(operation.response, "serialization")]}
    if operation.content:
        content["*/*"] = {"schema": {"type": "string", "format": "binary", "description": "Any media type."}}
    if operation.stream or operation.may_stream:
        content["text/event-stream"] = {"schema": {"type": "string", "description": "Server-sent events."}}
    headers = {"request-id": {"$ref": "#/components/headers/request-id"}}
    responses: dict[str, Any] = {
        str(status): {"description": "Done.", "headers": headers, "content": {} if status == 204 else content}
        for status in (operation.status, *operation.other_statuses)
    }
    for status in _possible_errors(operation):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return responses


def _possible_errors(operation: Operation) -> Iterable[int]:
    yield from (400, 401, 403, 404, 405, 409)
    if operation.body is not None or operation.upload is not None:
        yield from (413, 415)
    if operation.content:
        yield 416
    yield from (429, 500, 501, 503, 504)
    if operation.answers_for_turn:
        yield 502


def _error_response(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [segment[1:-1] for segment in path.split("/") if segment.startswith("{")]
    schema = {"type": "string", "minLength": 1, "maxLength": 256}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _query_parameter(parameter: Parameter) -> dict[str, Any]:
    rendered = {"name": parameter.name, "in": "query", "required": False, "schema": parameter.schema}
    if parameter.max_items:
        rendered |= {"style": "form", "explode": True}
    if parameter.description:
        rendered["description"] = parameter.description
    return rendered


def _header_parameters(operation: Operation) -> list[dict[str, Any]]:
    if not operation.idempotent_write:
        return []
    return [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "A repeat with the same key and body is answered as the first was, for a day.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        }
    ]


def _id(operation: Operation, taken: set[str]) -> str:
    """The handler's name; a handler that serves several routes gets a number for each further one."""
    name = operation.handler.__name__
    identifier = next(each for number in count(1) if (each := name if number == 1 else f"{name}_{number}") not in taken)
    taken.add(identifier)
    return identifier


def _public(path: str) -> str:
    """The path without the converters of its parameters."""
    return path.replace(":path}", "}")


def _name(model: type[BaseModel]) -> str:
    return model.__name__
