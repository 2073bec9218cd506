"""The demo model really works: with any tools it plans, calls, looks at results, and tells honestly what happened."""

import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from services.worker.runner.models.base import (
    Message,
    ModelAccess,
    ModelDelta,
    ModelError,
    ModelRequest,
    Stop,
    StopReason,
    TextDelta,
    ToolCall,
    ToolDefinition,
    UsageReport,
)
from services.worker.runner.models.demo import DemoModel
from services.worker.runner.models.registry import create

TASK = "Please write a small script, run it, and read the result."
BUILT_IN = ("bash", "read", "write", "edit", "glob", "grep")


def tools(*names: str) -> list[ToolDefinition]:
    return [ToolDefinition(name, "", {"type": "object"}) for name in names]


def user(text: str) -> Message:
    return Message("user", [{"type": "text", "text": text}])


async def ask(messages: list[Message], definitions: list[ToolDefinition]) -> list[ModelDelta]:
    model = DemoModel(ModelAccess("demo", default_model="demo"))
    return [delta async for delta in model.stream(ModelRequest("demo", "", messages, definitions))]


def text_of(deltas: list[ModelDelta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def calls_of(deltas: list[ModelDelta]) -> list[ToolCall]:
    return [delta for delta in deltas if isinstance(delta, ToolCall)]


async def play(text: str, definitions: list[ToolDefinition], run: Any, most: int = 10) -> tuple[str, list[ToolCall]]:
    """Drive the loop: run what it calls until it answers."""
    messages, made = [user(text)], []
    for _ in range(most):
        deltas = await ask(messages, definitions)
        calls = calls_of(deltas)
        if not calls:
            return text_of(deltas), made
        made += calls
        blocks = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input} for call in calls]
        messages.append(Message("assistant", blocks))
        results = []
        for call in calls:
            output, is_error = run(call)
            content = [{"type": "text", "text": output}]
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": content, "is_error": is_error})
        messages.append(Message("user", results))
    raise AssertionError("the demo model does not come to an end")


class Folder:
    """Runs the demo's calls for real."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, call: ToolCall) -> tuple[str, bool]:
        if call.name == "bash":
            done = subprocess.run(
                ["sh", "-c", call.input["command"]], cwd=self.path, capture_output=True, text=True, check=False
            )
            return done.stdout + done.stderr, done.returncode != 0
        target = self.path / call.input["file_path"]
        if call.name == "write":
            target.write_text(call.input["content"])
            return "written", False
        return target.read_text(), False


@pytest.mark.parametrize("subject", ["", " of the first ten primes", " with fibonacci numbers"])
@pytest.mark.parametrize("language", ["", " in Python"])
async def test_it_writes_runs_and_reads(tmp_path: Path, subject: str, language: str) -> None:
    task = f"Please write a small script{subject}{language}, run it, and read the result."
    answer, calls = await play(task, tools(*BUILT_IN), Folder(tmp_path))
    assert [call.name for call in calls] == ["write", "bash", "read"]
    result = (tmp_path / "result.txt").read_text()
    assert result.strip() and result.strip() in answer
    assert "demo model" in answer


async def test_it_comes_to_an_end_with_any_tools(tmp_path: Path) -> None:
    for count in range(len(BUILT_IN) + 1):
        for names in combinations(BUILT_IN, count):
            answer, calls = await play(TASK, tools(*names), Folder(tmp_path))
            assert {call.name for call in calls} <= set(names)
            assert "demo model" in answer
            if "bash" in names:
                assert "55" in answer
            else:
                assert "need a tool" in answer


@pytest.mark.parametrize("text", ["hello", "", "What is a file?", "Which files are there?", 'Search for "needle"', "…"])
async def test_other_texts_get_a_plain_answer_or_a_look_around(tmp_path: Path, text: str) -> None:
    answer, _ = await play(text, tools(*BUILT_IN), lambda call: ("nothing", False))
    assert "demo model" in answer
    answer, calls = await play(text, [], Folder(tmp_path))
    assert "demo model" in answer and not calls


async def test_what_has_no_words_is_answered_as_that() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    assert "no words" in text_of(await ask([Message("user", [picture])], tools(*BUILT_IN)))


async def test_it_tells_of_errors_and_denials() -> None:
    answer, calls = await play(TASK, tools(*BUILT_IN), lambda call: ("The user denied this call.", True))
    assert len(calls) == 1
    assert "did not succeed" in answer and "The user denied this call." in answer


async def test_custom_tools_are_used_when_they_are_named() -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["celsius", "kelvin"]},
        },
        "required": ["city", "days", "unit"],
    }
    weather = ToolDefinition("get_weather", "", schema)
    text = 'Use get_weather for "Oslo" over 3 days'
    answer, (made,) = await play(text, [weather, *tools("bash")], lambda call: ("snow", False))
    assert made.input == {"city": "Oslo", "days": 3, "unit": "celsius"}
    assert "snow" in answer


async def test_directives_call_tools_once_and_count_tokens() -> None:
    text = 'TOOL:bash:{"command": "ls -l"} TOOL:read:{"file_path": "a"} LEN:7'
    answer, calls = await play(text, tools("bash", "read"), lambda call: ("x", False))
    assert [(call.name, call.input) for call in calls] == [
        ("bash", {"command": "ls -l"}),
        ("read", {"file_path": "a"}),
    ]
    assert answer == "t0 t1 t2 t3 t4 t5 t6 "
    deltas = await ask([user("LEN:7")], [])
    (usage,) = [delta.usage for delta in deltas if isinstance(delta, UsageReport)]
    assert usage.output_tokens == 7 and usage.input_tokens == 2


async def test_it_fails_and_refuses_when_told_to() -> None:
    with pytest.raises(ModelError) as failed:
        await ask([user("FAIL:529")], [])
    assert failed.value.retryable and failed.value.status == 529
    stop = (await ask([user("STOP:refusal")], []))[-1]
    assert isinstance(stop, Stop) and stop.reason is StopReason.REFUSAL and stop.details


async def test_the_same_context_gives_the_same_answer() -> None:
    assert await ask([user(TASK)], tools(*BUILT_IN)) == await ask([user(TASK)], tools(*BUILT_IN))


def test_the_registry_makes_it_and_names_what_it_knows() -> None:
    assert isinstance(create(ModelAccess("demo")), DemoModel)
    with pytest.raises(ModelError, match="demo, anthropic, openai"):
        create(ModelAccess("other"))
