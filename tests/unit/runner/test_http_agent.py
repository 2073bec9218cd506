"""The client of the HTTP agent protocol: what it sends, which answers it takes, and how each other one is told."""

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.addresses import NO_PRIVATE_HOSTS, PrivateHosts
from kit.http_engine import HttpEngine
from kit.testing import await_until
from services.worker.runner.models import http_agent as client
from services.worker.runner.models.base import ModelError, ToolDefinition
from services.worker.runner.models.http_agent import HttpAgent, NotPosted, Step, StepAnswer, StepResult
from tests.support.http_agent import Answer, body, http_agent, reply

LOOPBACK = PrivateHosts.parse("127.0.0.1, localhost, [::1]")
TOOL = ToolDefinition("get_load", "Reads a load.", {"type": "object", "properties": {}})
STEP = Step(3, "sess_1", "Be brief.", [TOOL], message="Hello")
READER = HttpAgent(HttpEngine("https://agent.example.com/step"), NO_PRIVATE_HOSTS)


def agent_at(url: str, private: PrivateHosts = LOOPBACK, **options: Any) -> HttpAgent:
    return HttpAgent(HttpEngine(url, **options), private)


async def failure(answer: Answer, **options: Any) -> ModelError:
    async with http_agent(answer) as outside:
        with pytest.raises(ModelError) as caught:
            await agent_at(outside.url, **options).post(STEP, {})
        assert len(outside.steps) == 1
    assert not caught.value.retryable and not isinstance(caught.value, NotPosted)
    return caught.value


class TestRequest:
    def test_a_message(self) -> None:
        assert json.loads(STEP.body()) == {
            "session_id": "sess_1",
            "step": 3,
            "system": "Be brief.",
            "tools": [{"name": "get_load", "description": "Reads a load.", "input_schema": TOOL.input_schema}],
            "message": "Hello",
        }

    def test_results(self) -> None:
        results = [
            StepResult("c1", True, {"a": [1]}),
            StepResult("c2", False, "no such load"),
            StepResult("c3", True, None),
        ]
        sent = json.loads(Step(4, "sess_1", "", [], results=results).body())
        assert sent["tool_results"] == [
            {"id": "c1", "ok": True, "result": {"a": [1]}},
            {"id": "c2", "ok": False, "error": "no such load"},
            {"id": "c3", "ok": True, "result": None},
        ]
        assert "message" not in sent

    async def test_it_is_one_post_of_json_with_the_headers_and_a_key(self) -> None:
        async with http_agent(reply("Hi.")) as outside:
            agent = agent_at(outside.url)
            assert await agent.post(STEP, {"Authorization": "Bearer x", "X-Tenant": "acme"}) == StepAnswer("Hi.")
            await agent.post(STEP, {})
            assert outside.steps[0] == outside.steps[1] == json.loads(STEP.body())
            sent = outside.headers[0]
            assert (sent["authorization"], sent["x-tenant"]) == ("Bearer x", "acme")
            assert sent["content-type"] == "application/json" and sent["accept-encoding"] == "identity"
            assert outside.step_keys() == ["sess_1:3", "sess_1:3"]
            assert "authorization" not in outside.headers[1]

    async def test_a_2xx_other_than_200_is_an_answer_too(self) -> None:
        async with http_agent(body({"reply": "Made."}, 201)) as outside:
            assert (await agent_at(outside.url).post(STEP, {})).reply == "Made."


class TestAnswers:
    def test_a_reply_ends_the_turn_and_calls_beside_it_are_ignored(self) -> None:
        assert READER.read(b'{"reply": "", "tool_calls": "anything"}') == StepAnswer("")
        assert READER.read(b'{"reply": "Hi.", "other": 1}') == StepAnswer("Hi.")

    def test_calls_keep_their_order_ids_and_arguments(self) -> None:
        raw = b"""{"reply": null, "tool_calls": [
            {"id": "c2", "name": "get_load", "arguments": {"load_id": "L-1", "n": [1, null]}},
            {"id": "c1", "name": "no_such", "arguments": {}, "more": 1},
            {"id": "c3", "name": "ping"}]}"""
        found = READER.read(raw).calls
        assert [(call.id, call.name, call.input) for call in found] == [
            ("c2", "get_load", {"load_id": "L-1", "n": [1, None]}),
            ("c1", "no_such", {}),
            ("c3", "ping", {}),
        ]

    @pytest.mark.parametrize(
        ("answer", "told"),
        [
            (b"", "not JSON: (an empty body)"),
            (b"<html>\n busy\x00 </html>", "not JSON: <html> busy </html>"),
            (b'{"reply": "Hi."', "not JSON"),
            (b'{"reply": "\\ud800"}', "not JSON"),
            (b"\xff\xfe", "not JSON"),
            (b"[" * 5000, "not JSON"),
            ([], "not an object"),
            ("Hi.", "not an object"),
            (None, "not an object"),
            ({}, "neither reply nor tool_calls"),
            ({"reply": None}, "neither reply nor tool_calls"),
            ({"tool_calls": []}, "neither reply nor tool_calls"),
            ({"reply": None, "tool_calls": None}, "neither reply nor tool_calls"),
            ({"answer": "Hi."}, "neither reply nor tool_calls"),
            ({"reply": 5}, "a reply that is not a string"),
            ({"reply": ["Hi."]}, "a reply that is not a string"),
            ({"tool_calls": {}}, "not an array"),
            ({"tool_calls": "bash"}, "not an array"),
            ({"tool_calls": [{"id": str(n), "name": "x", "arguments": {}} for n in range(257)]}, "at most 256"),
            ({"tool_calls": ["bash"]}, "number 1 is not an object"),
            ({"tool_calls": [{"name": "x", "arguments": {}}]}, "number 1 has no id"),
            ({"tool_calls": [{"id": "", "name": "x", "arguments": {}}]}, "number 1 has no id"),
            ({"tool_calls": [{"id": 1, "name": "x", "arguments": {}}]}, "number 1 has no id"),
            ({"tool_calls": [{"id": "a\x00", "name": "x", "arguments": {}}]}, "number 1 has no id"),
            ({"tool_calls": [{"id": "x" * 257, "name": "x", "arguments": {}}]}, "number 1 has no id"),
            ({"tool_calls": [{"id": "a", "arguments": {}}]}, "number 1 has no name"),
            ({"tool_calls": [{"id": "a", "name": None, "arguments": {}}]}, "number 1 has no name"),
            ({"tool_calls": [{"id": "a", "name": "x", "arguments": []}]}, "arguments that are not an object"),
            ({"tool_calls": [{"id": "a", "name": "x", "arguments": None}]}, "arguments that are not an object"),
            ({"tool_calls": [{"id": "a", "name": "x", "arguments": "{}"}]}, "arguments that are not an object"),
            (
                {"tool_calls": [{"id": "a", "name": "x", "arguments": {}}, {"id": "b", "name": "x", "arguments": 1}]},
                "number 2 has arguments",
            ),
            (
                {"tool_calls": [{"id": "a", "name": "x", "arguments": {}}, {"id": "a", "name": "y", "arguments": {}}]},
                "two have the same id",
            ),
            (
                b'{"tool_calls": [{"id": "a", "name": "x", "arguments": ' + b'{"a":' * 101 + b"1" + b"}" * 104,
                "not JSON",
            ),
            (
                b'{"tool_calls": [{"id": "a", "name": "x", "arguments": ' + b'{"a":' * 101 + b"1" + b"}" * 101 + b"}]}",
                "nested more than 100 levels",
            ),
        ],
    )
    async def test_each_other_answer_is_told_by_what_is_wrong_with_it(self, answer: Any, told: str) -> None:
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        with pytest.raises(ModelError) as caught:
            READER.read(raw)
        assert caught.value.message.startswith("The agent at https://agent.example.com:443 answered with ")
        assert told in caught.value.message and not caught.value.retryable

    @settings(max_examples=150, deadline=None)
    @given(
        st.one_of(
            st.binary(max_size=200),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                lambda inner: (
                    st.lists(inner, max_size=4)
                    | st.dictionaries(
                        st.sampled_from(("reply", "tool_calls", "id", "name", "arguments", "x")), inner, max_size=5
                    )
                ),
                max_leaves=20,
            ).map(lambda value: json.dumps(value).encode()),
        )
    )
    def test_any_answer_is_a_reply_or_calls_or_one_error_that_people_can_read(self, raw: bytes) -> None:
        try:
            found = READER.read(raw)
        except ModelError as error:
            assert not error.retryable and len(error.message) < 2000 and error.message.isprintable()
            return
        assert (found.reply is None) != (not found.calls)
        assert len({call.id for call in found.calls}) == len(found.calls)
        assert all(isinstance(call.input, dict) and call.name and not call.input_error for call in found.calls)


class TestFailures:
    @pytest.mark.parametrize("status", [400, 401, 404, 409, 429, 500, 503])
    async def test_a_status_is_shown_with_its_body(self, status: int) -> None:
        error = await failure(body({"error": "no\nway"}, status))
        assert f"answered with status {status}: " in error.message and '"no\\nway"' in error.message
        assert error.status == status

    async def test_a_long_body_is_shown_in_part_and_not_read_to_its_end(self) -> None:
        async def never() -> None:
            await asyncio.Event().wait()

        error = await failure(Answer([b"x" * 100_000, never], 500), timeout_seconds=5)
        assert "x" * 1000 in error.message and error.message.endswith("… (cut off).")
        assert len(error.message) < 1200

    async def test_an_empty_body_is_told(self) -> None:
        assert "status 502: (an empty body)" in (await failure(Answer(status=502))).message

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    async def test_redirects_are_not_followed(self, status: int) -> None:
        async with http_agent(reply("There.")) as elsewhere:
            answer = Answer([], status, {"location": elsewhere.url})
            assert "redirects are not followed" in (await failure(answer)).message
            assert elsewhere.steps == []

    async def test_an_answer_that_is_too_long_is_not_read_to_its_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client, "MOST_ANSWER_BYTES", 10_000)
        assert "more than 10000 bytes" in (await failure(Answer([b'{"reply": "', b"x" * 20_000], hang=True))).message

    async def test_a_packed_answer_is_not_unpacked(self) -> None:
        packed = Answer([b"\x1f\x8b"], headers={"content-encoding": "gzip"})
        assert "a packed body" in (await failure(packed)).message

    async def test_a_hung_agent_is_cut_off(self) -> None:
        started = time.monotonic()
        assert "did not answer within 0.2 seconds" in (await failure(Answer(hang=True), timeout_seconds=0.2)).message
        assert time.monotonic() - started < 5

    async def test_a_body_that_drips_is_cut_off(self) -> None:
        async def drip() -> None:
            await asyncio.sleep(0.02)

        pieces = [part for _ in range(500) for part in (b" ", drip)]
        started = time.monotonic()
        assert "did not answer within" in (await failure(Answer(pieces), timeout_seconds=0.2)).message
        assert time.monotonic() - started < 5

    async def test_a_broken_connection(self) -> None:
        async def cut() -> None:
            raise ConnectionResetError

        assert "broke the connection off" in (await failure(Answer(first=cut))).message
        promised = Answer([b'{"rep', cut], headers={"content-length": "500"})
        assert "broke the connection off" in (await failure(promised)).message

    async def test_what_is_no_http(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"220 mail.example.com\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ModelError, match="no HTTP"):
                await agent_at(f"http://127.0.0.1:{port}/").post(STEP, {})


class TestAddresses:
    @pytest.mark.parametrize(
        "url",
        [
            "http://127.0.0.1:{port}/step",
            "http://[::1]:{port}/step",
            "http://localhost:{port}/step",
            "http://10.1.2.3/step",
            "http://169.254.169.254/latest",
            "http://0x7f000001:{port}/",
            "http://2130706433:{port}/",
            "http://[::ffff:127.0.0.1]:{port}/",
            "http://0.0.0.0:{port}/",
        ],
    )
    async def test_private_ones_are_never_connected_to(self, url: str) -> None:
        async with http_agent(reply("Hi.")) as outside:
            port = outside.url.split(":")[2].split("/")[0]
            with pytest.raises(NotPosted) as caught:
                await agent_at(url.format(port=port), NO_PRIVATE_HOSTS).post(STEP, {})
            assert "can't be reached" in caught.value.message and outside.steps == []

    async def test_metadata_is_refused_even_where_the_operator_names_it(self) -> None:
        allowed = PrivateHosts.parse("169.254.169.254")
        with pytest.raises(NotPosted):
            await agent_at("http://169.254.169.254/", allowed).post(STEP, {})

    async def test_a_name_that_changes_its_address_is_connected_to_where_it_was_judged(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loop = asyncio.get_running_loop()
        answers = [("93.184.216.34", 80), ("127.0.0.1", 80)]
        looked_up: list[str] = []
        dialled: list[Any] = []

        async def look_up(host: str, port: Any, **_: Any) -> list[Any]:
            looked_up.append(host)
            return [(2, 1, 6, "", answers[min(len(looked_up), 2) - 1])]

        async def dial(_: Any, address: Any) -> None:
            dialled.append(address)
            raise OSError(113, "No route to host")

        monkeypatch.setattr(loop, "getaddrinfo", look_up)
        monkeypatch.setattr(loop, "sock_connect", dial)
        with pytest.raises(NotPosted):
            await agent_at("http://agent.example.com/", NO_PRIVATE_HOSTS).post(STEP, {})
        assert looked_up == ["agent.example.com"] and {address[0] for address in dialled} == {"93.184.216.34"}

    async def test_nobody_there(self) -> None:
        async with http_agent(reply("Hi.")) as outside:
            url = outside.url
        with pytest.raises(NotPosted, match="can't be reached"):
            await agent_at(url).post(STEP, {})


async def test_a_step_that_is_cut_off_closes_its_connection_at_once() -> None:
    reached = asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    async with http_agent(Answer(first=wait)) as outside:
        step = asyncio.create_task(agent_at(outside.url).post(STEP, {}))
        await reached.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await await_until(lambda: outside.broken == 1, message="the agent sees the connection closed")
