"""The real vendors' SDKs against a scripted server: requests in the vendor's form, answers and faults in ours."""

from __future__ import annotations

from typing import Any

import pytest

from services.worker.runner.models.base import (
    Message,
    ModelAccess,
    ModelDelta,
    ModelError,
    ModelErrorKind,
    ModelProvider,
    ModelRequest,
    Stop,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    TokenUsage,
    ToolCall,
    ToolDefinition,
    UsageReport,
)
from services.worker.runner.models.registry import create
from tests.support.vendor import Answer, Vendor, refusal, sse, vendor

TOOL = ToolDefinition("bash", "Runs a command.", {"type": "object", "properties": {"command": {"type": "string"}}})
CONVERSATION = [
    Message("user", [{"type": "text", "text": "hello"}]),
    Message(
        "assistant",
        [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}},
        ],
    ),
    Message(
        "user",
        [
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [{"type": "text", "text": "a.txt"}],
                "is_error": False,
            },
            {"type": "text", "text": "and?"},
        ],
    ),
    Message("system", [{"type": "text", "text": "Be brief."}]),
]


def provider(name: str, server: Vendor) -> ModelProvider:
    path = "" if name == "anthropic" else "/v1"
    return create(ModelAccess(vendor=name, base_url=server.url + path, api_key="key-of-the-vendor"))


async def ask(name: str, server: Vendor, **changes: Any) -> list[ModelDelta]:
    model = provider(name, server)
    fields = {"model_id": "m", "system": "You help.", "messages": CONVERSATION, "tools": [TOOL], **changes}
    try:
        return [delta async for delta in model.stream(ModelRequest(**fields))]
    finally:
        await model.close()


ANTHROPIC_TEXT = sse(
    {
        "type": "message_start",
        "message": {
            "model": "m-1",
            "usage": {
                "input_tokens": 7,
                "output_tokens": 1,
                "cache_read_input_tokens": 3,
                "cache_creation_input_tokens": 5,
                "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 1},
            },
        },
    },
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "sig"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "me."}},
    {"type": "content_block_stop", "index": 1},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "t2", "name": "bash", "input": {}},
    },
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"comm'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": 'and": "pwd"}'}},
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 11}},
    {"type": "message_stop"},
    named=True,
)
OPENAI_TEXT = sse(
    {
        "model": "m-1",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": None, "reasoning_content": "hm"}}],
    },
    {"model": "m-1", "choices": [{"index": 0, "delta": {"content": "Let "}}]},
    {"model": "m-1", "choices": [{"index": 0, "delta": {"content": "me."}}]},
    {
        "model": "m-1",
        "choices": [
            {
                "index": 0,
                "delta": {
                    "tool_calls": [
                        {"index": 0, "id": "t2", "type": "function", "function": {"name": "bash", "arguments": ""}}
                    ]
                },
            }
        ],
    },
    {
        "choices": [
            {"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"command": "pwd"}'}}]}}
        ]
    },
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {
        "choices": [],
        "usage": {"prompt_tokens": 10, "completion_tokens": 11, "prompt_tokens_details": {"cached_tokens": 3}},
    },
    "[DONE]",
)
ANSWERS = {"anthropic": ANTHROPIC_TEXT, "openai": OPENAI_TEXT}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("split", [False, True], ids=["whole chunks", "one byte at a time"])
async def test_an_answer_with_thinking_text_and_a_call(name: str, split: bool) -> None:
    chunks = [bytes([byte]) for byte in b"".join(ANSWERS[name])] if split else ANSWERS[name]
    async with vendor(Answer(chunks=chunks)) as server:
        deltas = await ask(name, server)

    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Let me."
    assert [delta.text for delta in deltas if isinstance(delta, ThinkingDelta)] == ["hm"]
    assert any(isinstance(delta, ThinkingStart) for delta in deltas)
    assert any(isinstance(delta, ThinkingEnd) for delta in deltas)
    assert [delta for delta in deltas if isinstance(delta, ToolCall)] == [ToolCall("t2", "bash", {"command": "pwd"})]
    assert [delta for delta in deltas if isinstance(delta, Stop)] == [Stop(StopReason.TOOL_USE, model_id="m-1")]
    usage = [delta.usage for delta in deltas if isinstance(delta, UsageReport)][-1]
    expected = TokenUsage(7, 11, 3, 4, 1) if name == "anthropic" else TokenUsage(7, 11, 3)
    assert usage == expected


async def test_the_messages_api_gets_cache_marks_system_turns_and_reasoning_back() -> None:
    reasoning = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    messages = [CONVERSATION[0], Message("assistant", CONVERSATION[1].content, [reasoning]), *CONVERSATION[2:]]
    async with vendor(Answer(chunks=ANTHROPIC_TEXT)) as server:
        await ask("anthropic", server, model_id="claude-opus-5", messages=messages, speed="fast")
    sent, headers = server.requests[0], server.headers[0]

    assert sent["stream"] is True and sent["cache_control"] == {"type": "ephemeral"}
    assert sent["system"][0]["text"] == "You help." and sent["system"][0]["cache_control"]
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user", "system"]
    assert sent["messages"][1]["content"][0] == reasoning
    assert sent["tools"][0]["input_schema"] == dict(TOOL.input_schema)
    assert sent["thinking"] == {"type": "adaptive"}
    assert sent["speed"] == "fast" and "fast-mode" in headers["anthropic-beta"]
    assert headers["authorization"] == "Bearer key-of-the-vendor"


async def test_chat_completions_get_tool_messages_and_system_turns() -> None:
    async with vendor(Answer(chunks=OPENAI_TEXT)) as server:
        await ask("openai", server)
    sent = server.requests[0]

    assert [message["role"] for message in sent["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
        "system",
    ]
    assert sent["messages"][2]["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command":"ls"}'}
    assert sent["messages"][3] == {"role": "tool", "tool_call_id": "t1", "content": "a.txt"}
    assert sent["stream_options"] == {"include_usage": True}
    assert "prompt_cache_key" not in sent
    assert server.headers[0]["authorization"] == "Bearer key-of-the-vendor"


async def test_pictures_reach_chat_completions_also_out_of_tool_results() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [picture], "is_error": False}
    messages = [*CONVERSATION[:2], Message("user", [result])]
    async with vendor(Answer(chunks=OPENAI_TEXT)) as server:
        await ask("openai", server, messages=messages)

    tool, user = server.requests[0]["messages"][-2:]
    assert tool["role"] == "tool" and "can't be shown" in tool["content"]
    assert user["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(
    ("status", "headers", "kind", "retryable", "delay"),
    [
        (400, {}, ModelErrorKind.INVALID_REQUEST, False, None),
        (401, {}, ModelErrorKind.AUTHENTICATION, False, None),
        (404, {}, ModelErrorKind.NOT_FOUND, False, None),
        (408, {}, ModelErrorKind.TIMEOUT, True, None),
        (409, {}, ModelErrorKind.SERVER, True, None),
        (429, {"retry-after": "7"}, ModelErrorKind.RATE_LIMITED, True, 7.0),
        (429, {"retry-after-ms": "250"}, ModelErrorKind.RATE_LIMITED, True, 0.25),
        (500, {"retry-after": "soon"}, ModelErrorKind.SERVER, True, None),
        (503, {}, ModelErrorKind.OVERLOADED, True, None),
        (529, {}, ModelErrorKind.OVERLOADED, True, None),
    ],
)
async def test_a_refusal_is_told_apart_and_never_retried_by_the_sdk(
    name: str, status: int, headers: dict[str, str], kind: ModelErrorKind, retryable: bool, delay: float | None
) -> None:
    body = {"type": "error", "error": {"type": "x", "message": "what the vendor said"}}
    async with vendor(refusal(status, body, **headers)) as server:
        with pytest.raises(ModelError) as raised:
            await ask(name, server)

    error = raised.value
    assert (error.kind, error.retryable, error.retry_after_seconds, error.status) == (kind, retryable, delay, status)
    assert "what the vendor said" in error.message and "key-of-the-vendor" not in error.message
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("name", "status", "error"),
    [
        ("anthropic", 400, {"type": "invalid_request_error", "message": "prompt is too long: 208310 tokens > 200000"}),
        (
            "anthropic",
            400,
            {"type": "invalid_request_error", "message": "input length and `max_tokens` exceed context limit"},
        ),
        ("anthropic", 413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}),
        ("openai", 400, {"code": "context_length_exceeded", "message": "This model takes 8192 tokens."}),
        ("openai", 400, {"message": "This model's maximum context length is 8192 tokens, but you asked for 9000."}),
        ("openai", 400, {"type": "exceed_context_size_error", "message": "the request does not fit"}),
        ("openai", 413, {"message": "too large"}),
    ],
)
async def test_a_context_that_is_too_long_is_told_as_such(name: str, status: int, error: dict[str, Any]) -> None:
    async with vendor(refusal(status, {"type": "error", "error": error})) as server:
        with pytest.raises(ModelError) as raised:
            await ask(name, server)
    assert (raised.value.kind, raised.value.retryable) == (ModelErrorKind.TOO_LONG, False)
    assert raised.value.message == error["message"]


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        (
            "anthropic",
            sse(
                {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}},
                named=True,
            ),
        ),
        ("openai", sse({"error": {"code": "context_length_exceeded", "message": "no"}})),
    ],
)
async def test_so_is_one_that_is_told_in_mid_stream(name: str, chunks: list[bytes]) -> None:
    async with vendor(Answer(chunks=chunks)) as server:
        with pytest.raises(ModelError) as raised:
            await ask(name, server)
    assert raised.value.kind is ModelErrorKind.TOO_LONG


async def test_a_compacted_context_keeps_the_marks_of_the_vendors_cache() -> None:
    """The whole request is marked at its end, and the system prompt, which compactions leave as it is."""
    compacted = [Message("user", [{"type": "text", "text": "summary"}, {"type": "text", "text": "go on"}])]
    async with vendor(Answer(chunks=ANTHROPIC_TEXT)) as server:
        for messages in (CONVERSATION, compacted):
            await ask("anthropic", server, messages=messages)
    before, after = server.requests
    assert after["cache_control"] == {"type": "ephemeral"}
    assert (
        after["system"]
        == before["system"]
        == [{"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}]
    )
    assert after["tools"] == before["tools"]
    assert not any("cache_control" in block for message in after["messages"] for block in message["content"])


async def test_a_system_message_that_follows_no_user_is_sent_as_one() -> None:
    system = Message("system", [{"type": "text", "text": "Be brief."}])
    async with vendor(Answer(chunks=ANTHROPIC_TEXT)) as server:
        await ask("anthropic", server, messages=[system])
        await ask("anthropic", server, messages=[Message("user", [{"type": "text", "text": "hi"}]), system])
    assert [[message["role"] for message in request["messages"]] for request in server.requests] == [
        ["user"],
        ["user", "system"],
    ]


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [b"data: not json\n\n"],
        [b"data: 5\n\n"],
        [b'data: {"type":"content_block_delta"}\n\n', b'data: {"choices":[{"delta":5}]}\n\n'],
    ],
    ids=["nothing", "no JSON", "no object", "no known form"],
)
async def test_a_broken_answer_is_a_fault_worth_another_attempt(name: str, chunks: list[bytes]) -> None:
    async with vendor(Answer(chunks=chunks)) as server:
        with pytest.raises(ModelError) as raised:
            await ask(name, server)
    assert raised.value.retryable


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_that_breaks_off_is_a_fault_and_not_an_end(name: str) -> None:
    async with vendor(Answer(chunks=ANSWERS[name][:4])) as server:
        with pytest.raises(ModelError) as raised:
            await ask(name, server)
    assert raised.value.kind is ModelErrorKind.CONNECTION


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_vendor_that_is_away_is_a_fault_worth_another_attempt(name: str) -> None:
    async with vendor(Answer()) as server:
        gone = Vendor(url=server.url)
    with pytest.raises(ModelError) as raised:
        await ask(name, gone)
    assert (raised.value.kind, raised.value.retryable) == (ModelErrorKind.CONNECTION, True)


async def test_an_overload_in_mid_stream_is_told_as_such() -> None:
    overload = sse({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, named=True)
    async with vendor(Answer(chunks=[*ANTHROPIC_TEXT[:8], *overload])) as server:
        with pytest.raises(ModelError) as raised:
            await ask("anthropic", server)
    assert (raised.value.kind, raised.value.message) == (ModelErrorKind.OVERLOADED, "busy")


@pytest.mark.parametrize("name", ANSWERS)
async def test_closing_early_ends_the_request_at_the_vendor(name: str) -> None:
    async with vendor(Answer(chunks=ANSWERS[name][:-4], hang=True)) as server:
        model = provider(name, server)
        stream = model.stream(ModelRequest("m", "", CONVERSATION))
        async for delta in stream:
            if isinstance(delta, TextDelta):
                break
        await stream.aclose()
        await model.close()
        assert len(server.requests) == 1


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("arguments", ["{not json", "[1]"])
async def test_arguments_that_are_no_object_are_told_and_not_guessed(name: str, arguments: str) -> None:
    if name == "anthropic":
        delta = {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": arguments},
        }
        chunks = [*ANTHROPIC_TEXT[:11], *sse(delta, named=True), *ANTHROPIC_TEXT[13:]]
    else:
        call = {"index": 0, "id": "t2", "function": {"name": "bash", "arguments": arguments}}
        chunks = [*sse({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}), *OPENAI_TEXT[5:]]
    async with vendor(Answer(chunks=chunks)) as server:
        deltas = await ask(name, server)

    (call,) = [delta for delta in deltas if isinstance(delta, ToolCall)]
    assert call.input == {} and call.input_error


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_redirect_is_refused_since_it_would_carry_the_key_along(name: str) -> None:
    async with vendor() as elsewhere, vendor(Answer(307, [b"{}"], {"location": f"{elsewhere.url}/v1/steal"})) as server:
        with pytest.raises(ModelError) as raised:
            await ask(name, server)
    assert (raised.value.status, raised.value.retryable) == (307, False)
    assert elsewhere.requests == []
