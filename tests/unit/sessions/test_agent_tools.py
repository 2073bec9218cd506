"""Toolsets, custom tools, permission policies, and the bond between MCP servers and toolsets."""

from __future__ import annotations

from typing import Any

import pytest

from services.sessions.domain.errors import McpServerMismatch
from services.sessions.domain.mcp_servers import validate_mcp_servers
from services.sessions.domain.session_errors import InvalidRequest, UnknownField, UnsupportedCapability
from services.sessions.domain.tools import check_mcp_consistency, validate_tools
from services.sessions.domain.web_search import refuse_search, refuse_search_in_session

ALLOW, ASK = {"type": "always_allow"}, {"type": "always_ask"}
TOOLSET = {"type": "agent_toolset_20260401"}
BINDING = {"type": "mcp_toolset", "mcp_server_name": "s"}
OBJECT = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


def built_in(**fields: Any) -> dict[str, Any]:
    return validate_tools([{"type": "agent_toolset_20260401", **fields}])[0]


def custom(name: str = "lookup", **fields: Any) -> dict[str, Any]:
    return {"type": "custom", "name": name, "description": "Looks up.", "input_schema": OBJECT, **fields}


def grouped(*configs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "custom_toolset", "configs": list(configs), **fields}


def member(name: str = "lookup", **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": "Looks up.", "input_schema": OBJECT, **fields}


def test_the_built_in_toolset_runs_without_asking_unless_told_otherwise() -> None:
    assert built_in() == {
        "type": "agent_toolset_20260401",
        "default_config": {"enabled": True, "permission_policy": ALLOW},
        "configs": [],
    }


def test_an_mcp_toolset_asks_unless_told_otherwise() -> None:
    assert validate_tools([{"type": "mcp_toolset", "mcp_server_name": "git"}]) == [
        {
            "type": "mcp_toolset",
            "mcp_server_name": "git",
            "default_config": {"enabled": True, "permission_policy": ASK},
            "configs": [],
        }
    ]


def test_a_config_inherits_what_it_leaves_out_from_the_default() -> None:
    toolset = built_in(
        default_config={"enabled": False, "permission_policy": ASK},
        configs=[{"name": "bash"}, {"name": "read", "enabled": True}, {"name": "edit", "permission_policy": ALLOW}],
    )
    assert toolset["configs"] == [
        {"type": "bash", "name": "bash", "enabled": False, "permission_policy": ASK},
        {"type": "read", "name": "read", "enabled": True, "permission_policy": ASK},
        {"type": "edit", "name": "edit", "enabled": False, "permission_policy": ALLOW},
    ]


def test_an_explicit_policy_overrides_the_default_of_an_mcp_toolset_in_both_directions() -> None:
    toolset = validate_tools(
        [
            {
                "type": "mcp_toolset",
                "mcp_server_name": "git",
                "default_config": {"permission_policy": ALLOW},
                "configs": [{"name": "push", "permission_policy": ASK}, {"name": "log"}],
            }
        ]
    )[0]
    assert [config["permission_policy"] for config in toolset["configs"]] == [ASK, ALLOW]


@pytest.mark.parametrize("policy", ["always_ask", {"type": "always_ask"}])
def test_a_policy_may_be_a_bare_name(policy: Any) -> None:
    assert built_in(default_config={"permission_policy": policy})["default_config"]["permission_policy"] == ASK


@pytest.mark.parametrize("policy", ["never_allow", {"type": "never_allow"}, {"type": "auto"}, {}, 4, []])
def test_any_other_policy_is_refused_with_the_accepted_ones(policy: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        built_in(configs=[{"name": "bash", "permission_policy": policy}])
    assert refusal.value.field == "tools.0.configs.0.permission_policy.type"
    assert "always_allow, always_ask" in refusal.value.message


@pytest.mark.parametrize("config", [{}, {"enabled": True}, {"enabled": None}])
def test_an_enabled_search_is_an_unsupported_capability_without_a_provider(config: dict[str, Any]) -> None:
    given = [
        grouped(member("a"), member("b")),
        TOOLSET | {"configs": [{"name": "bash"}, {"name": "web_search", **config}]},
    ]
    tools = validate_tools(given)
    with pytest.raises(UnsupportedCapability) as refusal:
        refuse_search(tools, given=given)
    # As the caller counts: the group is stored as two tools.
    assert refusal.value.field == "tools.1.configs.1.enabled"
    assert refusal.value.metadata == {"capability": "web_search"}
    with pytest.raises(UnsupportedCapability) as refusal:
        refuse_search_in_session({"tools": [], "multiagent": {"agents": [{"tools": tools}]}})
    assert refusal.value.field == "agent.multiagent.agents.0.tools.2.configs.1.enabled"


@pytest.mark.parametrize(
    "configs",
    [[], [{"name": "web_fetch"}], [{"name": "web_search", "enabled": False}], [{"name": "web_fetch", "enabled": True}]],
)
def test_a_fetch_and_a_search_for_later_are_taken(configs: list[dict[str, Any]]) -> None:
    refuse_search(validate_tools([TOOLSET | {"configs": configs}]))
    refuse_search_in_session({"tools": validate_tools([TOOLSET | {"configs": configs}, custom("a")])})


def test_a_disabled_web_tool_is_kept_with_its_options() -> None:
    configs = built_in(
        configs=[
            {"name": "web_fetch", "enabled": False, "blocked_domains": ["ads.example.com"], "max_content_tokens": 10},
            {
                "name": "web_search",
                "enabled": False,
                "user_location": {"type": "approximate", "city": "Bonn", "country": "DE"},
            },
        ]
    )["configs"]
    assert configs[0]["blocked_domains"] == ["ads.example.com"]
    assert configs[0]["max_content_tokens"] == 10
    assert configs[1]["user_location"] == {"type": "approximate", "city": "Bonn", "country": "DE"}


def test_a_disabled_toolset_may_name_web_tools() -> None:
    assert (
        built_in(default_config={"enabled": False}, configs=[{"name": "web_search"}])["configs"][0]["enabled"] is False
    )


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([{"type": "agent_toolset_20990101"}], "tools.0.type"),
        ([{}], "tools.0.type"),
        ([{"type": ["custom"]}], "tools.0.type"),
        (["bash"], "tools.0"),
        ([TOOLSET] * 2, "tools.1"),
        ([custom(f"t{n}") for n in range(129)], "tools"),
        ([grouped(*(member(f"g{n}") for n in range(128))), custom()], "tools"),
        ([TOOLSET | {"configs": {}}], "tools.0.configs"),
        ([TOOLSET | {"configs": [4]}], "tools.0.configs.0"),
        ([TOOLSET | {"configs": [{"name": "shell"}]}], "tools.0.configs.0.name"),
        ([TOOLSET | {"configs": [{"name": ["bash"]}]}], "tools.0.configs.0.name"),
        ([TOOLSET | {"configs": [{}]}], "tools.0.configs.0.name"),
        ([TOOLSET | {"configs": [{"name": "bash", "type": "read"}]}], "tools.0.configs.0.type"),
        ([TOOLSET | {"configs": [{"name": "bash"}] * 2}], "tools.0.configs.1.name"),
        ([TOOLSET | {"configs": [{"name": "bash", "enabled": 1}]}], "tools.0.configs.0.enabled"),
        ([TOOLSET | {"default_config": []}], "tools.0.default_config"),
        ([{"type": "mcp_toolset"}], "tools.0.mcp_server_name"),
        ([{"type": "mcp_toolset", "mcp_server_name": "x" * 256}], "tools.0.mcp_server_name"),
        ([BINDING | {"configs": [{"name": ""}]}], "tools.0.configs.0.name"),
        ([BINDING | {"configs": [{"name": "t" * 129}]}], "tools.0.configs.0.name"),
        ([custom(name="")], "tools.0.name"),
        ([custom(name="has space")], "tools.0.name"),
        ([custom(name="n" * 129)], "tools.0.name"),
        ([custom(name="umlaut_ü")], "tools.0.name"),
        ([custom(name="line\n")], "tools.0.name"),
        ([custom(name=None)], "tools.0.name"),
        ([custom(name="bash")], "tools.0.name"),
        ([custom(name="web_search")], "tools.0.name"),
        ([custom("a"), custom("a")], "tools.1.name"),
        ([custom("a"), grouped(member("b"), member("a"))], "tools.1.configs.1.name"),
        ([grouped(member("a")), custom("a")], "tools.1.name"),
        ([grouped(member("glob"))], "tools.0.configs.0.name"),
        ([custom(description="")], "tools.0.description"),
        ([custom(description=None)], "tools.0.description"),
        ([custom(input_schema=None)], "tools.0.input_schema"),
        ([custom(input_schema=[])], "tools.0.input_schema"),
        ([custom(input_schema={})], "tools.0.input_schema"),
        ([custom(input_schema={"type": "array"})], "tools.0.input_schema"),
        ([custom(input_schema={"type": "object", "properties": []})], "tools.0.input_schema.properties"),
        ([custom(input_schema={"type": "object", "properties": {"q": 1}})], "tools.0.input_schema.properties.q"),
        ([custom(input_schema={"type": "object", "required": ["q", 1]})], "tools.0.input_schema.required"),
        ([custom(input_schema={"type": "object", "required": "q"})], "tools.0.input_schema.required"),
        ([custom(input_schema={"type": "object", "x": ["\x00"]})], "tools.0.input_schema"),
        ([custom(input_schema={"type": "object", "\x00": 1})], "tools.0.input_schema"),
        ([custom(input_schema={"type": "object", "x": "y" * 65_536})], "tools.0.input_schema"),
        ([grouped(member(input_schema=None))], "tools.0.configs.0.input_schema"),
        ([grouped(member(input_schema=None, parameters={"type": "string"}))], "tools.0.configs.0.parameters"),
        ([grouped(member(parameters={"type": "object"}))], "tools.0.configs.0.parameters"),
        ([grouped(member(enabled="no"))], "tools.0.configs.0.enabled"),
        ([grouped(4)], "tools.0.configs.0"),
        ([grouped(default_config={"enabled": 0})], "tools.0.default_config.enabled"),
    ],
)
def test_a_malformed_entry_is_refused_by_its_path(tools: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        validate_tools(tools)
    assert refusal.value.field == field
    assert field in refusal.value.message


def test_a_schema_may_not_be_nested_without_end() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(70):
        schema = {"type": "object", "properties": {"inner": schema}}
    with pytest.raises(InvalidRequest, match="nested deeper"):
        validate_tools([custom(input_schema=schema)])


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([custom(permission_policy=ASK)], "tools.0.permission_policy"),
        ([custom(permission_policy=None)], "tools.0.permission_policy"),
        ([grouped(member(permission_policy=ASK))], "tools.0.configs.0.permission_policy"),
        ([grouped(default_config={"permission_policy": ASK})], "tools.0.default_config.permission_policy"),
    ],
)
def test_a_policy_on_a_custom_tool_is_refused(tools: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        validate_tools(tools)
    assert refusal.value.field == field


def test_a_legacy_group_reads_back_flat_whichever_way_it_was_written() -> None:
    written = [
        grouped(member("a"), {"name": "b", "description": "B.", "parameters": OBJECT}),
        custom("c"),
    ]
    assert validate_tools(written) == [
        custom("a"),
        custom("b", description="B."),
        custom("c"),
    ]


def test_a_legacy_group_may_say_both_names_of_one_schema() -> None:
    assert validate_tools([grouped(member(parameters=OBJECT))]) == [custom()]


def test_what_a_legacy_group_disables_is_dropped() -> None:
    assert validate_tools([grouped(member("a", enabled=False), member("b", enabled=True))]) == [custom("b")]
    assert validate_tools([grouped(member("a"), member("b"), default_config={"enabled": False})]) == []
    assert validate_tools([grouped(member("a"), default_config={"enabled": True})]) == [custom("a")]
    assert validate_tools([grouped(member("a"), default_config=None)]) == [custom("a")]


def test_what_a_disabled_legacy_entry_says_is_judged_all_the_same() -> None:
    with pytest.raises(InvalidRequest):
        validate_tools([grouped(member("not a name", enabled=False))])


def test_validating_twice_changes_nothing() -> None:
    tools = validate_tools(
        [
            {
                "type": "agent_toolset_20260401",
                "default_config": {"enabled": False},
                "configs": [{"name": "web_fetch"}],
            },
            {"type": "mcp_toolset", "mcp_server_name": "s", "configs": [{"name": "t", "enabled": False}]},
            grouped(member("a")),
            custom("b"),
        ]
    )
    assert validate_tools(tools) == tools


def test_servers_read_back_with_their_type() -> None:
    assert validate_mcp_servers([{"name": "git", "url": "https://mcp.example.com/sse"}]) == [
        {"name": "git", "type": "url", "url": "https://mcp.example.com/sse"}
    ]


def test_a_server_may_be_a_process_of_the_sandbox() -> None:
    server = {"name": "git", "type": "stdio", "command": "git-mcp", "args": ["--ro"], "env": {"LEVEL": "1"}}
    assert validate_mcp_servers([server]) == [server]
    assert validate_mcp_servers([{"name": "git", "type": "stdio", "command": "git-mcp"}]) == [
        {"name": "git", "type": "stdio", "command": "git-mcp", "args": [], "env": {}}
    ]


@pytest.mark.parametrize("field", ["url", "command", "cwd"])
def test_a_server_has_nothing_of_another_kind(field: str) -> None:
    server = {"name": "s", "type": "stdio", "command": "a"} if field != "command" else {"name": "s", "url": "http://a"}
    with pytest.raises(UnknownField):
        validate_mcp_servers([server | {field: "https://a.example"}])


@pytest.mark.parametrize(
    ("servers", "field"),
    [
        ([{"name": f"s{n}", "url": "https://a.example"} for n in range(21)], "mcp_servers"),
        ([{"name": "s", "url": "https://a.example"}] * 2, "mcp_servers.1.name"),
        ([{"url": "https://a.example"}], "mcp_servers.0.name"),
        ([{"name": "x" * 256, "url": "https://a.example"}], "mcp_servers.0.name"),
        ([{"name": "s\x00", "url": "https://a.example"}], "mcp_servers.0.name"),
        ([{"name": "s", "type": "sse", "url": "https://a.example"}], "mcp_servers.0.type"),
        ([{"name": "s", "type": "stdio"}], "mcp_servers.0.command"),
        ([{"name": "s", "type": "stdio", "command": " "}], "mcp_servers.0.command"),
        ([{"name": "s", "type": "stdio", "command": "a", "args": "b"}], "mcp_servers.0.args"),
        ([{"name": "s", "type": "stdio", "command": "a", "args": ["\x00"]}], "mcp_servers.0.args.0"),
        ([{"name": "s", "type": "stdio", "command": "a", "args": [""] * 65}], "mcp_servers.0.args"),
        ([{"name": "s", "type": "stdio", "command": "a", "env": ["A=b"]}], "mcp_servers.0.env"),
        ([{"name": "s", "type": "stdio", "command": "a", "env": {"A=": "b"}}], "mcp_servers.0.env"),
        ([{"name": "s", "type": "stdio", "command": "a", "env": {"A": 1}}], "mcp_servers.0.env.A"),
        (
            [{"name": "s", "type": "stdio", "command": "a", "env": {f"A{n}": "" for n in range(65)}}],
            "mcp_servers.0.env",
        ),
        (
            [{"name": "s", "type": "url", "url": "https://a.example"}, {"name": "s", "type": "stdio", "command": "a"}],
            "mcp_servers.1.name",
        ),
        ([{"name": "s"}], "mcp_servers.0.url"),
        (["s"], "mcp_servers.0"),
        *(
            ([{"name": "s", "url": url}], "mcp_servers.0.url")
            for url in (
                "",
                "mcp.example.com",
                "ftp://a.example",
                "https://",
                "https://a.example/ b",
                "https://[::1",
                "https://a.example:99999",
                "https://user:secret@a.example",
                "https://a.example/\x00",
                "https://a.example/" + "x" * 2048,
            )
        ),
    ],
)
def test_a_malformed_server_is_refused_by_its_path(servers: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        validate_mcp_servers(servers)
    assert refusal.value.field == field


def bound(*names: str) -> list[dict[str, Any]]:
    return validate_tools([{"type": "mcp_toolset", "mcp_server_name": name} for name in names])


def declared(*names: str) -> list[dict[str, Any]]:
    return validate_mcp_servers([{"name": name, "url": "https://a.example"} for name in names])


def test_two_toolsets_may_bind_one_server() -> None:
    check_mcp_consistency(bound("git", "git", "docs"), declared("docs", "git"))


def test_a_toolset_without_its_server_is_refused_by_name() -> None:
    with pytest.raises(McpServerMismatch, match="wiki"):
        check_mcp_consistency(bound("git", "wiki"), declared("git"))


def test_a_server_that_no_toolset_binds_is_refused_by_name() -> None:
    with pytest.raises(McpServerMismatch, match=r"mcp_servers\.1.*wiki"):
        check_mcp_consistency(bound("git"), declared("git", "wiki"))
