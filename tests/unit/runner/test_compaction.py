"""When a context is near its end, what the model is shown for its summary, and how the demo model makes one."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from managed_agents.sessions.v1.events_pb2 import Event
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop.agent import AgentProfile
from services.worker.runner.loop.cache import ConversationCache
from services.worker.runner.loop.compaction import NEAR_END, Compactor
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.leases import Lease
from services.worker.runner.loop.sessions import TurnSessions
from services.worker.runner.loop.stopping import StopSignal
from services.worker.runner.loop.tools import Toolbox
from services.worker.runner.loop.transcript import transcript
from services.worker.runner.models.anthropic import AnthropicModel
from services.worker.runner.models.base import Message, ModelAccess, ModelRequest, TextDelta, ToolCall
from services.worker.runner.models.demo import DemoModel
from services.worker.runner.models.summary import INTRODUCTION, REQUEST
from services.worker.runner.models.windows import DEFAULT_WINDOW, block_tokens, text_tokens, window_tokens


def say(role: str, *texts: str) -> Message:
    return Message(role, [{"type": "text", "text": text} for text in texts])


def used(name: str, result: str) -> list[Message]:
    block = {"type": "tool_use", "id": f"t{name}", "name": name, "input": {"command": name}}
    answer = {"type": "tool_result", "tool_use_id": f"t{name}", "content": [{"type": "text", "text": result}]}
    return [Message("assistant", [block]), Message("user", [answer])]


@pytest.mark.parametrize(
    ("model_id", "tokens"),
    [
        ("claude-sonnet-4-5", 200_000),
        ("claude-sonnet-5-5", 1_000_000),
        ("anthropic/claude-opus-4-6", 1_000_000),
        ("gpt-5.1", 272_000),
        ("gpt-4o-mini", 128_000),
        ("gpt-4", 8_000),
        ("o3", 200_000),
        ("o3-mini", 200_000),
        ("Qwen/Qwen2.5-7B", 32_000),
        ("demo", 200_000),
        ("nobody-knows", DEFAULT_WINDOW),
    ],
)
def test_windows_are_known_by_name(model_id: str, tokens: int) -> None:
    assert window_tokens(model_id) == tokens


def test_estimates_are_on_the_high_side_and_pictures_count_by_the_piece() -> None:
    assert text_tokens("word " * 100) >= 100
    assert text_tokens("語" * 100) >= 100
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 1_000_000}}
    assert block_tokens(picture) < 5_000
    assert block_tokens({"type": "document", "source": {"type": "url", "url": "x"}}) > 0


def compactor(conversation: Conversation, window: int = 1_000) -> Compactor:
    toolbox = Toolbox(AgentProfile("a", "", "m", "standard", {}, {}), {})
    return Compactor(None, conversation, StopSignal(), toolbox, window)


def answered(tokens: int) -> Conversation:
    conversation = Conversation()
    conversation.apply("e1", "user.message", {"content": "hi"}, 1)
    conversation.apply("e2", "span.model_request_start", {"context_seq": 1}, 2)
    conversation.apply("e3", "agent.message", {"content": "hello"}, 3)
    conversation.apply("e4", "span.model_request_end", {"model_usage": {"input_tokens": tokens}}, 4)
    return conversation


def test_the_vendors_count_decides_to_the_token() -> None:
    assert not compactor(answered(799)).is_due("m", "")
    assert compactor(answered(800)).is_due("m", "")
    assert NEAR_END == 0.8


def test_the_count_holds_what_the_cache_read_and_wrote_and_what_was_said() -> None:
    conversation = answered(1)
    usage = {
        "input_tokens": 10,
        "output_tokens": 20,
        "cache_read_input_tokens": 300,
        "cache_creation_input_tokens": 400,
    }
    conversation.apply("e5", "span.model_request_start", {"context_seq": 4}, 5)
    conversation.apply("e6", "agent.message", {"content": "again"}, 6)
    conversation.apply("e7", "span.model_request_end", {"model_usage": usage}, 7)
    assert conversation.tokens(99) == 730


def test_a_vendor_that_counts_nothing_is_estimated_for() -> None:
    conversation = Conversation()
    for number in range(20):
        conversation.apply(f"u{number}", "user.message", {"content": "x" * 300}, 3 * number + 1)
        conversation.apply(f"s{number}", "span.model_request_start", {"context_seq": 3 * number + 1}, 3 * number + 2)
        conversation.apply(f"e{number}", "span.model_request_end", {"is_error": True}, 3 * number + 3)
    assert 2_000 <= conversation.tokens(0) < 2_500
    assert compactor(conversation, 2_500).is_due("m", "")
    # Nothing was read yet: there is nothing to summarise, however long it is.
    fresh = Conversation()
    fresh.apply("u", "user.message", {"content": "x" * 30_000}, 1)
    assert not compactor(fresh).is_due("m", "")


def stored(seq: int, event_type: str, **fields: Any) -> Event:
    return Event(id=f"e{seq}", seq=seq, type=event_type, body=orjson.dumps(fields))


async def test_a_runner_forgets_what_it_kept_where_the_context_starts_anew() -> None:
    """What it kept may hold an input as unread that another runner has read since, and summarised."""
    cache, lease = ConversationCache(1_000_000), Lease("sess_1", 7)
    kept = Conversation()
    kept.apply_stored(4, "e4", "user.message", orjson.dumps({"content": "old and unread here"}))
    cache.put("sess_1", kept)
    grant = TurnGrant(context_after_seq=89, context_starts_anew=True, context_complete=True)
    grant.session.id = "sess_1"
    compacted = {"content": [{"type": "text", "text": "so far"}], "context_seq": 89}
    grant.context.extend(
        [stored(91, "agent.thread_context_compacted", **compacted), stored(93, "user.message", content="new")]
    )
    conversation = await TurnSessions(None, cache).load(grant, lease, False)
    texts = [block["text"] for message in conversation.messages() for block in message.content]
    assert texts == [INTRODUCTION, "so far", "new"]


def test_a_kept_conversation_shrinks_when_it_is_compacted() -> None:
    conversation, cache = answered(10), ConversationCache(1_000_000)
    conversation.apply_stored(5, "e5", "user.message", orjson.dumps({"content": "x" * 100_000}))
    conversation.apply_stored(6, "e6", "span.model_request_start", orjson.dumps({"context_seq": 5}))
    conversation.apply_stored(7, "e7", "user.message", orjson.dumps({"content": "y" * 2_000}))
    assert conversation.size_bytes > 100_000
    compacted = {"content": [{"type": "text", "text": "z" * 1_000}], "context_seq": 6}
    conversation.apply_stored(8, "e8", "agent.thread_context_compacted", orjson.dumps(compacted))
    assert 3_000 < conversation.size_bytes < 8_000
    cache.put("sess_1", conversation)
    assert cache.size_bytes == conversation.size_bytes


def test_a_summary_is_asked_for_behind_what_the_vendors_cache_knows() -> None:
    conversation = Conversation()
    conversation.apply("e1", "user.message", {"content": "hi"}, 1)
    model = AnthropicModel(ModelAccess("anthropic", api_key="k"))
    before = model.body(ModelRequest("m", "Be brief.", conversation.messages(), []))
    conversation.apply("e2", "span.model_request_start", {"context_seq": 1}, 2)
    conversation.apply("e3", "agent.message", {"content": "hello"}, 3)
    conversation.apply("e4", "span.model_request_end", {"model_usage": {"input_tokens": 900}}, 4)
    conversation.apply("e5", "user.message", {"content": "waits"}, 5)
    asked, with_tools = next(compactor(conversation)._questions("m", 900))
    after = model.body(ModelRequest("m", "Be brief.", asked, []))
    assert with_tools and after["system"] == before["system"] and after["cache_control"] == before["cache_control"]
    assert after["messages"] == [
        *before["messages"],
        {"role": "assistant", "content": [{"type": "text", "text": "hello"}]},
        {"role": "user", "content": [{"type": "text", "text": REQUEST}]},
    ]


_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=3_000)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_TEXTS, _TEXTS), min_size=1, max_size=12), st.integers(200, 4_000))
def test_a_transcript_keeps_to_its_size(turns: list[tuple[str, str]], most: int) -> None:
    messages = [message for ask, done in turns for message in (say("user", ask), *used("bash", done))]
    # The note and the newest request, cut to its length, are there in any case.
    assert text_tokens(transcript(messages, most)) <= most + 600


def test_a_transcript_cuts_long_pieces_before_it_leaves_old_ones_out() -> None:
    messages = [say("user", "the task"), *used("bash", "x" * 20_000), say("assistant", "done")]
    whole = transcript(messages, 10_000)
    assert whole.startswith("Person: the task") and "x" * 20_000 in whole and "You called bash" in whole
    cut = transcript(messages, 2_000)
    assert "characters left out" in cut and cut.startswith("Person: the task") and cut.endswith("You: done")
    many = [say("user", "the task"), *(message for n in range(50) for message in used(f"c{n}", "y" * 200))]
    short = transcript(many, 500)
    assert "earlier pieces were left out" in short and "the task" in short and "c49" in short and "c1 " not in short


async def demo(*messages: Message) -> tuple[str, list[ToolCall]]:
    request = ModelRequest("demo", "", messages, [])
    deltas = [delta async for delta in DemoModel(ModelAccess("demo")).stream(request)]
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    return text, [delta for delta in deltas if isinstance(delta, ToolCall)]


async def test_the_demo_model_summarises_the_same_each_time_and_repeats_no_directive() -> None:
    messages = [say("user", 'TOOL:bash:{"command": "ls"} FAIL:413 please'), *used("bash", "a"), say("user", REQUEST)]
    first, second = await demo(*messages), await demo(*messages)
    assert first == second and not first[1]
    assert "please" in first[0] and "TOOL:" not in first[0] and "FAIL:" not in first[0]


async def test_the_demo_model_goes_on_from_a_summary_with_what_came_after_it() -> None:
    after, calls = await demo(say("user", INTRODUCTION, "wrote a file and ran it, LEN:9", "LEN:2"))
    assert after == "t0 t1 " and not calls
    nothing, calls = await demo(say("user", INTRODUCTION, "please write a script and run it"))
    assert "summary" in nothing and not calls
