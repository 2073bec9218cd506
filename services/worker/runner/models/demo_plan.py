"""What the demo model does next: pure rules over the last user text, the tools, and the calls made since.

A task is a short list of steps (write a file, run it, read the result, list, search, call a custom tool). Each answer
makes the next step's call; when all are made, or one went wrong, the answer tells what happened. A step whose own tool
is missing is done with `bash` where that is there; what can't be done at all is said instead of pretended.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.worker.runner.models import demo_scripts
from services.worker.runner.models.base import Message, ToolDefinition
from services.worker.runner.models.summary import INTRODUCTION, REQUEST, is_request

BUILT_IN = frozenset(("bash", "read", "write", "edit", "glob", "grep", "web_fetch", "web_search"))
_NAME = "I am the demo model: no model vendor is configured, so I follow simple rules instead of thinking."
_QUOTE_CHARS = 1200
_SUMMARY_CHARS = 300
_DIRECTIVE = re.compile(r"\b(TOOL|LEN|DELAY|THINK|STOP|FAIL):")
_VERBS = {
    "write": re.compile(r"\b(write|create|save|make|generate|build)\b", re.I),
    "run": re.compile(r"\b(run|execute|test|compute|calculate)\b", re.I),
    "read": re.compile(r"\b(read|show|cat|open|print|check|view)\b", re.I),
    "list": re.compile(r"\b(list|find|which)\b[^.]*\bfiles?\b", re.I),
    "search": re.compile(r"\b(search|grep)\b", re.I),
}
_FILE = re.compile(r"(?<![\w/.-])(/?(?:[\w-]+/)*[\w-]+\.(?:py|sh|txt|md|json|csv|js|html|log|ya?ml))\b")
_QUOTED = re.compile(r'"([^"\n]{1,2000})"|“([^”\n]{1,2000})”')
_COMMAND = re.compile(r"`([^`\n]{1,2000})`")


@dataclass(frozen=True, slots=True)
class DoneCall:
    """A call that was made since the last user text, and what came of it."""

    name: str
    input: Mapping[str, Any]
    output: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """The last user text and what happened since."""

    text: str
    calls: tuple[DoneCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """The next answer."""

    text: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a plan; `tool` is empty where none can do it."""

    label: str
    tool: str
    input: dict[str, Any]
    announcement: str


def read_progress(messages: Sequence[Message]) -> Progress:
    """Find the newest user text, and pair the calls after it with their results."""
    start, text = len(messages), ""
    while start:
        start -= 1
        message = messages[start]
        if message.role == "user" and (text := _asked(message.content)):
            break
    results: dict[str, Mapping[str, Any]] = {}
    uses: list[Mapping[str, Any]] = []
    for message in messages[start + 1 :]:
        for block in message.content:
            if block["type"] == "tool_use":
                uses.append(block)
            elif block["type"] == "tool_result":
                results[block["tool_use_id"]] = block
    calls = tuple(
        DoneCall(use["name"], use["input"], text_of(result.get("content") or ()), bool(result.get("is_error")))
        for use in uses
        if (result := results.get(use["id"])) is not None
    )
    return Progress(text, calls)


def _asked(content: Sequence[Mapping[str, Any]]) -> str:
    """What a person wrote, without the summary that a compacted context begins with."""
    texts = [block["text"] for block in content if block["type"] == "text" and block["text"].strip()]
    return "\n".join(texts[2:] if texts and texts[0] == INTRODUCTION else texts)


def wants_summary(messages: Sequence[Message]) -> bool:
    """Whether the newest user text asks for a summary of the rest."""
    newest = next((message for message in reversed(messages) if message.role == "user"), None)
    return newest is not None and is_request(text_of(newest.content))


def summary(messages: Sequence[Message]) -> str:
    """The demo model's summary: how much there was, and the newest request without its directives."""
    said = [_asked(message.content).removesuffix(REQUEST) for message in messages if message.role == "user"]
    newest = next((" ".join(text.split()) for text in reversed(said) if text.strip()), "")
    calls = sum(block["type"] == "tool_use" for message in messages for block in message.content)
    quoted = _DIRECTIVE.sub(r"\1 ", newest)[:_SUMMARY_CHARS]
    return (
        f"Summary by the demo model, which follows simple rules: there were {len(messages)} messages and {calls} calls"
        f" of tools. The newest request was “{quoted}”. All that was begun has been done."
    )


def text_of(content: Sequence[Mapping[str, Any]]) -> str:
    """The text blocks, joined by newlines."""
    return "\n".join(block["text"] for block in content if block["type"] == "text" and block["text"].strip())


def next_reply(progress: Progress, tools: Sequence[ToolDefinition]) -> Reply:
    """The next call of the plan, or the closing answer."""
    if progress.calls and progress.calls[-1].is_error:
        return Reply(_tell_failure(progress))
    # What a directive asked for is all there is to do.
    steps = [] if "TOOL:" in progress.text else plan(progress.text, tools)
    missing = next((step for step in steps if not step.tool), None)
    if missing is not None:
        return Reply(f"{_NAME} To {missing.label} I would need a tool that this agent does not have.")
    if len(progress.calls) < len(steps):
        step = steps[len(progress.calls)]
        return Reply(step.announcement, [(step.tool, step.input)])
    if progress.calls:
        return Reply(_tell_success(progress, steps))
    if not progress.text:
        return Reply(
            f"{_NAME} There are no words for me to follow: pictures and documents I can't read, and a summary that I go"
            " on from says that all that was begun has been done."
        )
    return Reply(_plain_answer(progress.text, tools))


def plan(text: str, tools: Sequence[ToolDefinition]) -> list[Step]:
    """The steps that the text asks for, by simple words. The same for each request of a turn."""
    if custom := _custom_steps(text, tools):
        return custom
    names = {tool.name for tool in tools}
    wants = {verb for verb, pattern in _VERBS.items() if pattern.search(text)}
    named_file = found[1] if (found := _FILE.search(text)) else ""
    command = found[1] if (found := _COMMAND.search(text)) else ""
    if command and "run" in wants:
        return [_bash(names, f"run `{command}`", command)]
    if "run" in wants and ("write" in wants or not named_file):
        wants.add("write")
    if not named_file and not re.search(r"\b(file|script|program|note)s?\b", text, re.I) and "list" not in wants:
        return []
    steps: list[Step] = []
    script = demo_scripts.choose(text, named_file, run="run" in wants)
    if "write" in wants:
        steps.append(_write(names, script.path, _quoted(text) if not script.command else "", script.content))
    result_path = script.path
    if "run" in wants:
        line = script.command or demo_scripts.command_for(script.path)
        if "read" in wants:
            result_path = demo_scripts.RESULT_PATH
            line = f"{line} > {result_path}"
        steps.append(_bash(names, f"run {script.path}", line))
    if "read" in wants and (steps or named_file):
        steps.append(_read(names, result_path))
    return steps or _look_around(text, names, wants)


def _look_around(text: str, names: set[str], wants: set[str]) -> list[Step]:
    if "search" in wants and (wanted := _quoted(text)):
        if "grep" in names:
            return [Step(f"search for {wanted}", "grep", {"pattern": re.escape(wanted)}, f"I search for {wanted}.")]
        return [_bash(names, f"search for {wanted}", f"grep -rnF -- {_shell(wanted)} . | head -n 50")]
    if "list" in wants:
        if "glob" in names:
            return [Step("list files", "glob", {"pattern": "**/*"}, "I list the files.")]
        return [_bash(names, "list files", "find . -type f | head -n 50")]
    return []


def _write(names: set[str], path: str, quoted: str, content: str) -> Step:
    content = quoted + "\n" if quoted else content
    if "write" in names:
        tool, arguments = "write", {"file_path": path, "content": content}
    else:
        tool, arguments = _or_bash(names, f"cat > {path} <<'END_OF_FILE'\n{content}END_OF_FILE")
    return Step(f"write {path}", tool, arguments, f"I write {path}.")


def _read(names: set[str], path: str) -> Step:
    if "read" in names:
        tool, arguments = "read", {"file_path": path}
    else:
        tool, arguments = _or_bash(names, f"cat {path}")
    return Step(f"read {path}", tool, arguments, f"I read {path}.")


def _bash(names: set[str], label: str, command: str) -> Step:
    tool, arguments = _or_bash(names, command)
    return Step(label, tool, arguments, f"I {label}.")


def _or_bash(names: set[str], command: str) -> tuple[str, dict[str, Any]]:
    return ("bash", {"command": command}) if "bash" in names else ("", {})


def _custom_steps(text: str, tools: Sequence[ToolDefinition]) -> list[Step]:
    found = [
        (place.start(), tool)
        for tool in tools
        if tool.name not in BUILT_IN and (place := re.search(rf"(?<!\w){re.escape(tool.name)}(?!\w)", text))
    ]
    return [
        Step(f"call {tool.name}", tool.name, fill_schema(tool.input_schema, text), f"I call {tool.name}.")
        for _, tool in sorted(found, key=lambda pair: pair[0])
    ]


def fill_schema(schema: Mapping[str, Any], text: str) -> dict[str, Any]:
    """An input with every required property, or all where none is required, taken from the text where it fits."""
    properties = schema.get("properties") or {}
    wanted = [name for name in schema.get("required") or properties if name in properties]
    return {name: _fill(properties[name], text) for name in wanted}


def _fill(schema: object, text: str) -> Any:
    schema = schema if isinstance(schema, Mapping) else {}
    if options := schema.get("enum"):
        return next((option for option in options if isinstance(option, str) and option in text), options[0])
    kind = schema.get("type")
    if kind in ("integer", "number"):
        found = re.search(r"-?\d+", text)
        return int(found[0]) if found else 1
    if kind == "boolean":
        return True
    if kind == "array":
        return []
    if kind == "object":
        return fill_schema(schema, text)
    return _quoted(text) or text.strip()[:200]


def leading_json(text: str) -> Any:
    """The JSON value that the text begins with, or None."""
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


def _quoted(text: str) -> str:
    found = _QUOTED.search(text)
    return (found[1] or found[2]) if found else ""


def _shell(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _tell_failure(progress: Progress) -> str:
    call = progress.calls[-1]
    return (
        f"{_NAME} I stopped because my call of `{call.name}` did not succeed. It answered:\n\n{_excerpt(call.output)}"
    )


def _tell_success(progress: Progress, steps: Sequence[Step]) -> str:
    done = [step.label for step in steps] or [f"call {call.name}" for call in progress.calls]
    last = progress.calls[-1]
    listing = "\n".join(f"{number}. {label}" for number, label in enumerate(done, 1))
    return f"Done, step by step:\n\n{listing}\n\nThe last step showed me:\n\n{_excerpt(last.output)}\n\n{_NAME}"


def _plain_answer(text: str, tools: Sequence[ToolDefinition]) -> str:
    words = len(text.split())
    able = ", ".join(tool.name for tool in tools) or "none"
    said = " ".join(text.split())[:200]
    return (
        f"{_NAME} You wrote {words} word{'' if words == 1 else 's'}: “{said}”. My tools: {able}. "
        "Ask me to write a script, run it and read the result, and I will."
    )


def _excerpt(text: str) -> str:
    text = text.strip() or "(nothing)"
    shown = text if len(text) <= _QUOTE_CHARS else text[:_QUOTE_CHARS] + " …"
    return f"```\n{shown}\n```"
