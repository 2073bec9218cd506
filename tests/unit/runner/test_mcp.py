"""What the runner makes of MCP servers: rules of toolsets, names for models, results, and who may be reached."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.addresses import PrivateHosts
from services.worker.runner.mcp.naming import LONGEST_NAME, visible_names
from services.worker.runner.mcp.offers import definition
from services.worker.runner.mcp.reach import Reach
from services.worker.runner.mcp.results import EMPTY, MOST_PICTURES, render
from services.worker.runner.mcp.spec import Servers, read_servers

ALLOW = {"permission_policy": {"type": "always_allow"}}
ASK = {"permission_policy": {"type": "always_ask"}}
NEVER = {"permission_policy": {"type": "never_allow"}}
OFF = {"enabled": False}


def servers(*toolsets: dict[str, Any]) -> Servers:
    entries = [{"type": "mcp_toolset", "mcp_server_name": "s", **toolset} for toolset in toolsets]
    read = read_servers({"mcp_servers": [{"name": "s", "type": "url", "url": "https://a.example"}], "tools": entries})
    assert read is not None
    return read


class TestRules:
    @pytest.mark.parametrize(
        ("toolsets", "named", "others"),
        [
            ([{}], "always_ask", "always_ask"),
            ([{"default_config": ALLOW}], "always_allow", "always_allow"),
            ([{"default_config": ALLOW, "configs": [{"name": "t", **ASK}]}], "always_ask", "always_allow"),
            ([{"configs": [{"name": "t", **ALLOW}]}], "always_allow", "always_ask"),
            ([{"default_config": OFF}], "", ""),
            ([{"default_config": OFF, "configs": [{"name": "t", "enabled": True}]}], "always_ask", ""),
            ([{"configs": [{"name": "t", **OFF}]}], "", "always_ask"),
            # What is forbidden is not offered, rather than offered and refused.
            ([{"configs": [{"name": "t", **NEVER}]}], "", "always_ask"),
            ([{"default_config": NEVER, "configs": [{"name": "t", **ALLOW}]}], "always_allow", ""),
            # A policy that this build does not know admits nothing.
            ([{"default_config": {"permission_policy": {"type": "auto"}}}], "", ""),
            # Two groups over one transport.
            (
                [
                    {"default_config": OFF, "configs": [{"name": "t", "enabled": True, **ALLOW}]},
                    {"default_config": ASK},
                ],
                "always_allow",
                "always_ask",
            ),
            ([{"default_config": ALLOW}, {"default_config": ASK}], "always_ask", "always_ask"),
            ([{"default_config": ALLOW}, {"default_config": OFF}], "always_allow", "always_allow"),
            ([{"configs": [{"name": "t", **ALLOW}]}, {"configs": [{"name": "t", **ASK}]}], "always_ask", "always_ask"),
            ([{"configs": [{"name": "t", **ALLOW}]}, {"configs": [{"name": "t", **OFF}]}], "", "always_ask"),
        ],
    )
    def test_a_tool_is_under_its_entry_or_else_under_the_default(
        self, toolsets: list[dict[str, Any]], named: str, others: str
    ) -> None:
        read = servers(*toolsets)
        assert read.policy_of("s", "t") == named
        assert read.policy_of("s", "never named") == others

    def test_a_tool_of_another_server_is_not_admitted(self) -> None:
        assert servers({"default_config": ALLOW}).policy_of("other", "t") == ""

    def test_an_agent_without_servers_has_none(self) -> None:
        assert read_servers({}) is None
        assert read_servers({"tools": [{"type": "agent_toolset_20260401"}], "mcp_servers": []}) is None

    def test_a_process_is_read_with_its_command(self) -> None:
        entry = {"name": "s", "type": "stdio", "command": "c", "args": ["a"], "env": {"B": "2", "A": "1"}}
        read = read_servers({"mcp_servers": [entry], "tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}]})
        assert read is not None
        (server,) = read.servers
        assert (server.command, server.args, server.env) == ("c", ("a",), (("A", "1"), ("B", "2")))


class TestNames:
    def test_a_tool_is_called_by_its_server_and_itself(self) -> None:
        assert visible_names([("git", "log"), ("mail", "send")], ()) == {
            "git__log": ("git", "log"),
            "mail__send": ("mail", "send"),
        }

    def test_a_taken_name_is_told_apart(self) -> None:
        (name,) = visible_names([("git", "log")], {"git__log"})
        assert name.startswith("git__log_") and name != "git__log"

    def test_two_tools_that_would_read_alike_are_told_apart(self) -> None:
        named = visible_names(
            [("a", "b__c"), ("a__b", "c"), ("a b", "c"), ("a-b", "c"), ("a_", "_b"), ("a__", "b")], ()
        )
        assert len(named) == 6

    def test_a_later_tool_renames_none_that_is_there(self) -> None:
        before = visible_names([("a", "x"), ("b", "x")], ())
        after = visible_names([("a", "w"), ("a", "x"), ("a", "x y"), ("b", "x")], ())
        assert before.items() <= after.items()

    @given(
        st.lists(st.tuples(st.text(min_size=1, max_size=90), st.text(min_size=1, max_size=140)), unique=True),
        st.sets(st.sampled_from(["bash", "a__b", "a__a", "0__0"])),
    )
    def test_names_are_sound_unique_and_lead_back(self, tools: list[tuple[str, str]], taken: set[str]) -> None:
        named = visible_names(tools, taken)
        assert sorted(named.values()) == sorted(tools)
        for name in named:
            assert 1 <= len(name) <= LONGEST_NAME and name.isascii()
            assert all(character.isalnum() or character in "_-" for character in name)
            assert name not in taken


class TestOffers:
    @pytest.mark.parametrize(
        ("schema", "offered"),
        [
            ({}, {"type": "object", "properties": {}}),
            ({"type": ["object", "null"]}, {"type": "object", "properties": {}}),
            ({"properties": None}, {"type": "object", "properties": {}}),
            (
                {"type": "object", "properties": {"a": {"anyOf": [{}]}}, "anyOf": [{"required": ["a"]}]},
                {"type": "object", "properties": {"a": {"anyOf": [{}]}}},
            ),
            ({"properties": {"a": {"description": "x" * 70_000}}}, {"type": "object", "properties": {}}),
        ],
    )
    def test_a_schema_is_brought_into_what_vendors_take(self, schema: dict[str, Any], offered: dict[str, Any]) -> None:
        assert definition("n", "d", schema).input_schema == offered

    def test_a_description_is_bounded(self) -> None:
        assert len(definition("n", "x" * 10_000, {}).description) == 8_192


def picture(data: str, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "mimeType": media_type, "data": data}


PNG = base64.b64encode(b"any bytes").decode()


class TestResults:
    def test_texts_are_joined_in_their_order(self) -> None:
        rendered = render({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
        assert (rendered.text, rendered.is_error, rendered.pictures) == ("a\nb", False, [])

    def test_an_error_stays_one(self) -> None:
        assert render({"content": [{"type": "text", "text": "no"}], "isError": True}).is_error

    def test_a_picture_follows_its_mark(self) -> None:
        rendered = render({"content": [picture(PNG), {"type": "text", "text": "see"}]})
        assert rendered.text == "[picture 1]\nsee"
        assert rendered.pictures == [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
        ]

    @pytest.mark.parametrize(
        "block", [picture(PNG, "image/tiff"), picture("not base64!"), picture("A" * (5 * 1024 * 1024 + 4)), picture("")]
    )
    def test_a_picture_that_no_model_takes_is_told_of(self, block: dict[str, Any]) -> None:
        rendered = render({"content": [block]})
        assert rendered.pictures == [] and "not shown" in rendered.text

    def test_pictures_are_bounded(self) -> None:
        rendered = render({"content": [picture(PNG)] * (MOST_PICTURES + 1)})
        assert len(rendered.pictures) == MOST_PICTURES and "too large" in rendered.text

    def test_structured_content_is_shown_unless_a_text_says_it(self) -> None:
        structured = {"pages": 3}
        assert render({"content": [], "structuredContent": structured}).text == '{"pages":3}'
        said = {"type": "text", "text": '{ "pages": 3 }'}
        assert render({"content": [said], "structuredContent": structured}).text == '{ "pages": 3 }'
        bare = {"type": "text", "text": "three"}
        assert render({"content": [bare], "structuredContent": {"result": "three"}}).text == "three"
        assert render({"content": [bare], "structuredContent": structured}).text == 'three\n{"pages":3}'

    def test_a_link_and_a_resource_name_their_address(self) -> None:
        link = {"type": "resource_link", "name": "r", "uri": "file:///r", "mimeType": "text/plain", "description": "d"}
        text = {"type": "resource", "resource": {"uri": "file:///t", "text": "inside"}}
        blob = {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "application/pdf", "blob": "AAAA"}}
        shown = {"type": "resource", "resource": {"uri": "file:///p", "mimeType": "image/png", "blob": PNG}}
        rendered = render({"content": [link, text, blob, shown]})
        assert rendered.text.splitlines() == [
            "[resource r: file:///r (text/plain; d)]",
            "[resource file:///t]",
            "inside",
            "[resource file:///b] [application/pdf, 3 bytes, not shown]",
            "[resource file:///p] [picture 1]",
        ]

    def test_sound_and_what_is_unknown_are_told_of(self) -> None:
        rendered = render({"content": [{"type": "audio", "mimeType": "audio/wav", "data": "AAAA"}, {"type": "video"}]})
        assert rendered.text == "[audio/wav, 3 bytes, not shown]\n[content of type video, not shown]"

    def test_nothing_is_said_to_be_nothing(self) -> None:
        assert render({"content": []}).text == EMPTY


class TestReach:
    @pytest.mark.parametrize(
        ("network", "host", "allowed"),
        [
            (None, "mcp.example.com", True),
            ({"type": "unrestricted"}, "mcp.example.com", True),
            ({"type": "limited"}, "mcp.example.com", False),
            ({"type": "limited", "allow_mcp_servers": True}, "mcp.example.com", True),
            ({"type": "limited", "allow_mcp_server_network_access": True}, "mcp.example.com", True),
            ({"type": "limited", "allow_package_managers": True}, "mcp.example.com", False),
            ({"type": "limited", "allowed_hosts": ["*.example.com"]}, "mcp.example.com", True),
            ({"type": "limited", "allowed_hosts": ["*.example.com"]}, "example.com", False),
            ({"type": "limited", "allowed_hosts": ["mcp.example.com:8443"]}, "mcp.example.com", False),
            ({"type": "limited", "allowed_hosts": ["MCP.example.com"]}, "mcp.EXAMPLE.com", True),
            ({"type": "nonsense"}, "mcp.example.com", False),
            ("nonsense", "mcp.example.com", False),
        ],
    )
    def test_the_environment_says_which_servers_may_be_used(self, network: Any, host: str, allowed: bool) -> None:
        reach = Reach.of({"network": network} if network else {}, PrivateHosts())
        assert reach.allows(host, 443) is allowed
