"""From a failed shape check to one sentence that names the field and what it takes.

Runs only on refused requests, so it may walk the model classes to find out which
fields an object would have accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from kit.errors import DomainError

from ..errors import InvalidRequest, UnknownField

MAX_SHOWN = 200

_SENTENCES = {
    "missing": "{path} is required.",
    "string_too_short": "{path} must be at least {min_length} characters long.",
    "string_too_long": "{path} must be at most {max_length} characters long.",
    "string_pattern_mismatch": "{path} must match {pattern}.",
    "int_from_float": "{path} must be an integer.",
    "too_long": "{path} must hold at most {max_length} entries.",
    "too_short": "{path} must hold at least {min_length} entries.",
    "literal_error": "{path} must be one of: {expected}.",
    "union_tag_invalid": "{path}.type must be one of: {expected_tags}.",
    "union_tag_not_found": "{path}.type is required.",
    "greater_than_equal": "{path} must be at least {ge}.",
    "less_than_equal": "{path} must be at most {le}.",
    "greater_than": "{path} must be greater than {gt}.",
    "less_than": "{path} must be less than {lt}.",
    "finite_number": "{path} must be a finite number.",
}
_KINDS = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def refusal(model: type[BaseModel], error: ValidationError) -> DomainError:
    """The refusal for the most telling fault of a body."""
    faults = error.errors(include_url=False, include_input=False)
    # The deepest fault is the branch of a union that the caller most likely meant.
    fault = max(faults, key=lambda each: len(each["loc"]))
    location, kind = tuple(fault["loc"]), fault["type"]
    parts, holders = _resolve(model, location, kind)
    path = ".".join(str(part) for part in parts)[:MAX_SHOWN] or "The body"
    if kind == "extra_forbidden":
        accepted = ", ".join(_field_names(holders))
        name = str(location[-1])[:MAX_SHOWN]
        where = "" if len(parts) == 1 else f' at "{path}"'
        return UnknownField(f'Unknown field "{name}"{where}. Accepted here: {accepted}.', field=path)
    if kind in _KINDS:
        kinds = [_KINDS[each["type"]] for each in faults if _is_kind_at(model, each, parts)]
        return InvalidRequest(f"{path} must be {' or '.join(dict.fromkeys(kinds))}.", field=path)
    template = _SENTENCES.get(kind)
    if template is None:
        return InvalidRequest(f"{path}: {fault['msg'].removeprefix('Value error, ')}", field=path)
    return InvalidRequest(template.format(path=path, **fault.get("ctx", {})), field=path)


def _is_kind_at(model: type[BaseModel], fault: Any, parts: list[Any]) -> bool:
    """True for the fault of another branch of a union at the same place."""
    return fault["type"] in _KINDS and _resolve(model, tuple(fault["loc"]), fault["type"])[0] == parts


def _resolve(model: type[BaseModel], location: tuple[Any, ...], kind: str) -> tuple[list[Any], list[type[BaseModel]]]:
    """Split a location into the caller's path and the classes that hold its last part."""
    holders: list[type[BaseModel]] = [model]
    parts: list[Any] = []
    for index, part in enumerate(location):
        is_last = index == len(location) - 1
        if isinstance(part, int):
            parts.append(part)
            continue
        branches = [holder for holder in holders if _is_branch(holder, part)]
        if branches and len(holders) > 1 and not is_last:
            # The mark of a union's branch comes before the field, and may have the same name.
            holders = branches
            continue
        owners = [holder for holder in holders if _field(holder, part) is not None]
        if owners:
            parts.append(part)
            if not is_last:
                holders = [found for owner in owners for found in _models(_field(owner, part).annotation)]
        elif not holders or (is_last and kind in ("extra_forbidden", "missing")):
            parts.append(part)
    return parts, holders


def _field(model: type[BaseModel], name: str) -> Any:
    for field_name, info in model.model_fields.items():
        if name in (field_name, info.alias):
            return info
    return None


def _field_names(models: Iterable[type[BaseModel]]) -> list[str]:
    return list(dict.fromkeys(info.alias or name for model in models for name, info in model.model_fields.items()))


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models(argument)]


def _is_branch(model: type[BaseModel], mark: str) -> bool:
    info = model.model_fields.get("type")
    literal = info.annotation if info is not None else None
    return model.__name__ == mark or (get_origin(literal) is Literal and mark in get_args(literal))
