"""Proves: a tool's input is taken in its published spellings, and a wrong one is refused naming the field."""

import pytest

from services.worker.tools import TOOL_SPECS, ToolInputInvalid, validate_input


def test_the_six_tools_describe_themselves():
    assert list(TOOL_SPECS) == ["bash", "read", "write", "edit", "glob", "grep"]
    for name, spec in TOOL_SPECS.items():
        assert spec.name == name
        assert spec.description
        assert spec.input_schema["type"] == "object"


@pytest.mark.parametrize("name", ["read", "write", "edit"])
def test_path_is_another_spelling_of_file_path(name):
    rest = {"read": {}, "write": {"content": ""}, "edit": {"old_string": "a", "new_string": "b"}}[name]
    assert validate_input(name, {"path": "/a", **rest}) == {"file_path": "/a", **rest}
    assert validate_input(name, {"path": "/a", "file_path": "/a", **rest})["file_path"] == "/a"
    with pytest.raises(ToolInputInvalid, match="twice"):
        validate_input(name, {"path": "/a", "file_path": "/b", **rest})


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("read", {}, "file_path"),
        ("read", {"file_path": 1}, "file_path"),
        ("read", {"file_path": ""}, "file_path"),
        ("read", {"file_path": "a\0b"}, "file_path"),
        ("read", {"file_path": "\ud800"}, "file_path"),
        ("read", {"file_path": "a", "offset": 0}, "offset"),
        ("read", {"file_path": "a", "offset": True}, "offset"),
        ("read", {"file_path": "a", "offset": "1"}, "offset"),
        ("read", {"file_path": "a", "view_range": [1]}, "view_range"),
        ("read", {"file_path": "a", "view_range": [1, "2"]}, "view_range"),
        ("read", {"file_path": "a", "colour": 1}, "colour"),
        ("read", {"file_path": "x" * 5000}, "file_path"),
        ("bash", {"command": "x", "timeout_ms": 600_001}, "timeout_ms"),
        ("bash", {"command": "x", "timeout_ms": -1}, "timeout_ms"),
        ("bash", {"command": "a\0b"}, "command"),
        ("bash", {"command": None, "restart": "yes"}, "restart"),
        ("write", {"file_path": "a"}, "content"),
        ("write", {"file_path": "a", "content": None}, "content"),
        ("edit", {"file_path": "a", "old_string": "", "new_string": "b"}, "old_string"),
        ("grep", {"pattern": "a", "output_mode": "all"}, "output_mode"),
        ("grep", {"pattern": "a", "head_limit": 0}, "head_limit"),
        ("glob", {"pattern": []}, "pattern"),
    ],
)
def test_a_wrong_field_is_named(name, value, field):
    with pytest.raises(ToolInputInvalid) as caught:
        validate_input(name, value)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{name}: {field}: ")


@pytest.mark.parametrize("value", [None, [], "ls", 3])
def test_an_input_must_be_an_object(value):
    with pytest.raises(ToolInputInvalid, match="JSON object"):
        validate_input("bash", value)


def test_an_unknown_tool_is_refused_with_the_known_names():
    with pytest.raises(ToolInputInvalid, match="bash, read, write"):
        validate_input("teleport", {})


def test_optional_fields_may_be_null_and_content_may_hold_nul():
    assert validate_input("bash", {"command": "ls", "timeout_ms": None, "restart": None}) == {"command": "ls"}
    assert validate_input("write", {"file_path": "a", "content": "\0"})["content"] == "\0"
