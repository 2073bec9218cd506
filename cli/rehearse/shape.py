"""Checks the shape of a domain's files against their JSON schemas, and tells what differs in words for people.

The `description` of each part of a schema completes the sentence "… must be".
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from cli.rehearse.faults import Fault, unknown
from cli.rehearse.fields import shown
from cli.rehearse.yaml_files import YamlFile


@cache
def schema(name: str) -> Mapping[str, Any]:
    """`domain` or `task`."""
    return json.loads(files("cli.rehearse").joinpath(f"{name}.schema.json").read_text())


def shape_faults(file: YamlFile, name: str) -> list[Fault]:
    """What is wrong with the shape of a file; its data may be read as its schema says when nothing is."""
    return [fault for error in _validator(name).iter_errors(file.data) for fault in _faults(file, error)]


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema(name))


def _faults(file: YamlFile, error: ValidationError) -> Iterator[Fault]:
    path, instance = tuple(error.absolute_path), _instance(error)
    here: Mapping[str, Any] = error.schema if isinstance(error.schema, Mapping) else {}
    named = f'"{path[-1]}" ' if path and isinstance(path[-1], str) else ""
    match error.validator:
        case "additionalProperties":
            accepted = here.get("properties", {})
            for name in instance:
                if name not in accepted:
                    yield file.fault((*path, name), unknown("field", name, accepted))
        case "required":
            properties = here.get("properties", {})
            for name in here["required"]:
                if name not in instance:
                    told = properties.get(name, {}).get("description", "it is needed")
                    yield file.fault(path, f'"{name}" is missing: {told}')
        case "minProperties" | "maxProperties":
            yield file.fault(path, f"{named}must be {here['description']}, and {_count(error)}")
        case _ if "propertyNames" in error.absolute_schema_path:
            yield file.fault((*path, str(instance)), f'"{instance}" must be {_wanted(error)}')
        case _:
            yield file.fault(path, f"{named}must be {_wanted(error)}, not {_found(instance)}")


def _count(error: ValidationError) -> str:
    return f"has {len(fields)} fields" if (fields := _instance(error)) else "has none"


def _instance(error: ValidationError) -> Any:
    return error.instance


def _wanted(error: ValidationError) -> str:
    here = error.schema if isinstance(error.schema, Mapping) else {}
    told = str(here.get("description", "something else"))
    bound: Any = error.validator_value
    match error.validator:
        case "enum":
            return f"{told} ({', '.join(map(str, bound))})"
        case "minimum":
            return f"{told}, {bound} or more"
        case "minItems":
            return f"{told} with at least {bound} of them"
        case "maxItems" | "maxLength":
            return f"{told}, {bound} long at most"
        case "uniqueItems":
            return f"{told} without repeats"
    return told


def _found(value: Any) -> str:
    if isinstance(value, dict | list) and value:
        return "a mapping" if isinstance(value, dict) else "this list"
    return "an empty mapping" if value == {} else "an empty list" if value == [] else shown(value)
