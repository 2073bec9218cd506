"""A worker that was told something unusable says which option it is, and does nothing."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.commands import app
from services.worker.fleet.errors import OptionUnusable
from services.worker.fleet.ground import network_policy
from services.worker.fleet.options import KEY_VARIABLE, Options, check, read_key

KEY = "mawk_" + "x" * 40


def poll(*arguments: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        app, ["worker", "poll", *arguments], env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", **environment}
    )
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--port", "0"),
        ("--port", "65536"),
        ("--port", "http"),
        ("--interval-ms", "0"),
        ("--interval-ms", "-1"),
        ("--interval-ms", "soon"),
        ("--interval-ms", "1.5"),
        ("--interval-ms", "nan"),
        ("--interval-ms", ""),
        ("--heartbeat-ms", "0"),
        ("--heartbeat-ms", "often"),
        ("--heartbeat-ms", "-20000"),
        ("--wait-ms", "30001"),
        ("--concurrency", "0"),
        ("--concurrency", "many"),
        ("--metrics-port", "70000"),
        ("--max-exec-seconds", "0"),
        ("--max-idle-seconds", "-1"),
        ("--memory-sync-seconds", "1"),
        ("--sandbox", "jail"),
        ("--url", "agents.example"),
        ("--url", "ftp://agents.example"),
        ("--url", "https://user:secret@agents.example"),
        ("--url", "https://agents.example?x=1"),
        ("--url", "http://[::1"),
        ("--ca-file", "/nowhere/ca.pem"),
        ("--key-file", "/nowhere/key"),
        ("--pass-env", "MANAGED_AGENTS_ENVIRONMENT_KEY"),
        ("--pass-env", "A=B"),
        ("--worker-id", "x" * 129),
        ("--worker-id", "a\nb"),
        ("--environment-id", "x" * 129),
    ],
)
def test_an_unusable_option_is_named(tmp_path: Path, option: str, value: str) -> None:
    code, output = poll("--workdir", str(tmp_path), option, value)
    assert code == 2
    assert option in output
    assert "secret" not in output


def test_a_workdir_must_be_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for workdir in ("file", "nowhere"):
        code, output = poll("--workdir", str(tmp_path / workdir))
        assert code == 2 and "--workdir" in output
    code, output = poll("--workdir", "/")
    assert code == 2 and "--workdir" in output
    code, output = poll()
    assert code == 2 and "--workdir" in output


def test_an_option_of_the_environment_is_judged_alike(tmp_path: Path) -> None:
    code, output = poll("--workdir", str(tmp_path), MANAGED_AGENTS_PORT="none")
    assert code == 2 and "--port" in output
    code, output = poll("--workdir", str(tmp_path), MANAGED_AGENTS_URL="nowhere")
    assert code == 2 and "--url" in output


def test_the_help_tells_every_option_and_how_to_begin() -> None:
    code, output = poll("--help")
    assert code == 0
    for option in (
        "--environment-id",
        "--workdir",
        "--once",
        "--interval-ms",
        "--worker-id",
        "--heartbeat-ms",
        "--port",
    ):
        assert option in output
    for word in ("worker_<pid>", "20000", "Ctrl-C", "MANAGED_AGENTS_ENVIRONMENT_KEY", "Examples"):
        assert word in output


def test_a_key_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert read_key(tmp_path / "key", {KEY_VARIABLE: "mawk_other"}) == KEY
    assert read_key(None, {KEY_VARIABLE: f" {KEY} "}) == KEY
    assert read_key(None, {}) is read_key(None, {KEY_VARIABLE: "  "}) is None


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"caf\xc3\xa9", b"a\nb", b"x" * 5000, b"ma_an_api_key"])
def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(OptionUnusable, match="--key-file") as refused:
        read_key(tmp_path / "key", {})
    assert not content.strip() or content.decode(errors="replace") not in str(refused.value)


def test_the_key_is_in_no_text_of_the_options() -> None:
    assert "key" not in Options.__dataclass_fields__


@pytest.mark.parametrize("field", ["interval_seconds", "heartbeat_seconds", "longest_seconds", "memory_seconds"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_times_are_real_ones(tmp_path: Path, field: str, value: float) -> None:
    with pytest.raises(OptionUnusable, match="--"):
        check(Options(url="http://127.0.0.1:1", workdir=tmp_path, **{field: value}))


def test_hosts_are_taken_as_the_proxy_takes_them() -> None:
    assert not network_policy(()).allows_something
    assert network_policy(("*",)).unrestricted
    policy = network_policy(("api.example.com", "*.cdn.example.com:443"))
    assert policy.allows("api.example.com", 80) and policy.allows("a.cdn.example.com", 443)
    assert not policy.allows("example.com", 443) and not policy.allows("a.cdn.example.com", 80)
    for wrong in ("http://x", "a b", "", "x/y"):
        with pytest.raises(OptionUnusable, match="--allow-host"):
            network_policy((wrong,))


def test_the_start_loads_nothing_of_the_worker_for_other_commands() -> None:
    import subprocess
    import sys

    loaded = "[name for name in sys.modules if name.startswith(('services', 'aiohttp'))]"
    program = f"import sys, cli.commands; print({loaded})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert ended.stdout.strip() == "[]"
