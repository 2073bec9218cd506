"""Each kind of item does what it should in the workdir, and nothing anywhere else."""

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from kit.testing import await_until
from services.worker.fleet.errors import OptionUnusable
from tests.integration.fleet.harness import WORKER, done, fleet
from tests.support.work_server import ENVIRONMENT, KEY, WorkServer


async def results(server: WorkServer, workdir: Path, *asked: tuple[str, Any], **changed: Any) -> list[Any]:
    """The results of items, one worker at them."""
    items = [server.put(kind, payload) for kind, payload in asked]
    async with fleet(server, workdir, **changed):
        return [each["result"] for each in await done(server, *items)]


IMPOSSIBLE: list[tuple[str, Any, str, str]] = [
    ("read", {"path": "../x"}, "path_refused", "out of"),
    ("read", {"path": "/etc/passwd"}, "path_refused", "out of"),
    ("read", {"path": "link/passwd"}, "path_refused", "out of"),
    ("write", {"path": "link/x", "content": ""}, "path_refused", "out of"),
    ("list", {"path": "link"}, "path_refused", "out of"),
    ("exec", {"command": "true", "cwd": "link"}, "path_refused", "out of"),
    ("exec", {"command": "true", "cwd": "none"}, "path_refused", "no such"),
    ("read", {"path": "none.txt"}, "path_refused", "no such"),
    ("read", {}, "invalid_payload", "path"),
    ("write", {"path": "x"}, "invalid_payload", "content"),
    ("write", {"path": "x", "content": "?", "encoding": "base64"}, "invalid_payload", "base64"),
    ("write", {"path": "x", "content": "?", "encoding": "rot13"}, "invalid_payload", "encoding"),
    ("exec", {"command": ""}, "invalid_payload", "command"),
    ("exec", {"command": "a\0b"}, "invalid_payload", "command"),
    ("exec", {"command": "true", "timeout_ms": -1}, "invalid_payload", "timeout_ms"),
    ("exec", {"command": "true", "timeout_ms": "1"}, "invalid_payload", "timeout_ms"),
    ("exec", {"command": "true", "env": {"A B": "x"}}, "invalid_payload", "env"),
    ("exec", {"command": "true", "env": {"A": 1}}, "invalid_payload", "env"),
    ("exec", [], "invalid_payload", "object"),
    ("exec", None, "invalid_payload", "object"),
    ("teleport", {}, "unknown_kind", "exec"),
]


async def test_each_kind_does_its_work_in_the_workdir(tmp_path: Path) -> None:
    async with WorkServer() as server:
        found = await results(
            server,
            tmp_path,
            ("write", {"path": "src/a.txt", "content": "one\n", "encoding": "utf-8"}),
            ("write", {"path": "b.bin", "content": base64.b64encode(b"\xff\x00").decode(), "encoding": "base64"}),
            ("read", {"path": "src/a.txt"}),
            ("read", {"path": "b.bin"}),
            ("list", {"path": "."}),
            ("exec", {"command": "pwd; cat a.txt; echo oops >&2; exit 3", "cwd": "src"}),
            ("exec", {"command": "echo $A-$B", "env": {"A": "1", "B": 'it\'s "so" $x'}}),
        )
    assert found[2:4] == [
        {"content": "one\n", "encoding": "utf-8"},
        {"content": "/wA=", "encoding": "base64"},
    ]
    assert [(each["name"], each["type"]) for each in found[4]["entries"]] == [("b.bin", "file"), ("src", "directory")]
    assert found[5] == {"stdout": f"{tmp_path}/src\none\n", "stderr": "oops\n", "exitCode": 3, "timedOut": False}
    assert found[6]["stdout"] == '1-it\'s "so" $x\n'
    assert (tmp_path / "src" / "a.txt").read_text() == "one\n"


async def test_claims_are_made_with_the_key_and_the_identity(tmp_path: Path) -> None:
    async with WorkServer() as server:
        item = server.put("exec", {"command": "true"})
        async with fleet(server, tmp_path):
            await done(server, item)
    bodies = {name: body for name, body, _ in server.calls}
    assert bodies["claim"] == {
        "worker_id": WORKER,
        "environment_id": ENVIRONMENT,
        "environment_key": KEY,
        "wait_ms": 5000,
    }
    assert bodies["accept"] == {"id": item, "worker_id": WORKER, "attempt": 1}
    assert bodies["complete"]["worker_id"] == WORKER and "failed" not in bodies["complete"]
    assert {headers["authorization"] for _, _, headers in server.calls} == {f"Bearer {KEY}"}


async def test_what_cannot_be_done_is_reported_failed_with_the_reason(tmp_path: Path, server: WorkServer) -> None:
    (tmp_path / "link").symlink_to("/etc")
    items = [server.put(kind, payload) for kind, payload, _, _ in IMPOSSIBLE]
    async with fleet(server, tmp_path):
        reports = await done(server, *items)
    for (kind, payload, code, word), report in zip(IMPOSSIBLE, reports, strict=True):
        error = report["result"]["error"]
        assert report["failed"] is True, (kind, payload)
        assert error["code"] == code and word in error["message"].lower(), (kind, payload, error)


async def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(
    tmp_path: Path, server: WorkServer
) -> None:
    command = "(setsid sh -c 'sleep 30; echo late > late.txt' &) ; sleep 30 & echo before; wait"
    item = server.put("exec", {"command": command, "timeout_ms": 1500})
    began = time.monotonic()
    async with fleet(server, tmp_path):
        (report,) = await done(server, item)
        assert time.monotonic() - began < 20
        assert report["result"] == {"stdout": "before\n", "stderr": "", "exitCode": 124, "timedOut": True}
        await await_until(lambda: not _running("sleep 30", tmp_path))


async def test_what_a_command_leaves_in_the_background_ends_with_it(tmp_path: Path, server: WorkServer) -> None:
    item = server.put("exec", {"command": "setsid sleep 31 > /dev/null 2>&1 & nohup sleep 31 & echo started"})
    async with fleet(server, tmp_path):
        (report,) = await done(server, item)
        assert report["result"]["stdout"] == "started\n" and report["result"]["exitCode"] == 0
        await await_until(lambda: not _running("sleep 31", tmp_path))


def _running(command: str, cwd: Path) -> list[str]:
    """Living processes of this command whose folder is this one."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            line = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip() if each.name.isdigit() else ""
            if line == command and (each / "cwd").resolve() == cwd.resolve():
                found.append(each.name)
        except OSError:
            continue
    return found


ENDS: list[tuple[str, int, str]] = [
    ("true", 0, ""),
    ("exit 7", 7, ""),
    ("(exit 8)", 8, ""),
    ("exec sh -c 'echo x; exit 9'", 9, "x\n"),
    ("set -e; false; echo no", 1, ""),
    ("kill -9 $$", 137, ""),
    ("no_such_program", 127, ""),
    ("if", 2, ""),
    ('cat; read line; echo "[$line]"', 0, "[]\n"),
    ("exec 2>/dev/null; echo hidden >&2; echo x", 0, "x\n"),
    ("exec >/dev/null 2>&1; echo x", 0, ""),
    ("printf 'a\\0b'", 0, "a\0b"),
    ("trap 'echo bye' EXIT; echo x", 0, "x\nbye\n"),
    ("trap 'echo bye' EXIT; exit 3", 3, "bye\n"),
    ("builtin() { :; }; printf() { :; }; false", 1, ""),
    ("cd /; echo x", 0, "x\n"),
    ("break; continue; return 3", 2, ""),
]


async def test_every_way_in_which_a_command_ends_is_told(tmp_path: Path, server: WorkServer) -> None:
    items = [server.put("exec", {"command": command, "timeout_ms": 10_000}) for command, _, _ in ENDS]
    async with fleet(server, tmp_path):
        reports = await done(server, *items)
    for (command, code, stdout), report in zip(ENDS, reports, strict=True):
        result = report["result"]
        assert (result["exitCode"], result["stdout"], result["timedOut"]) == (code, stdout, False), (command, result)


async def test_output_that_looks_like_an_end_is_output(tmp_path: Path, server: WorkServer) -> None:
    command = (
        "printf '\\0%s 0\\0' aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa >&2; printf '\\0' >&2; sleep 0.05; printf 'b' >&2; exit 5"
    )
    item = server.put("exec", {"command": command})
    async with fleet(server, tmp_path):
        (report,) = await done(server, item)
    assert report["result"]["stderr"] == "\0" + "a" * 32 + " 0\0\0b" and report["result"]["exitCode"] == 5


async def test_output_beyond_the_limit_is_cut_and_kept_in_a_file(tmp_path: Path, server: WorkServer) -> None:
    item = server.put("exec", {"command": "seq 1 1000000; seq 1 10 >&2"})
    async with fleet(server, tmp_path):
        (report,) = await done(server, item)
    whole = "".join(f"{number}\n" for number in range(1, 1000001))
    stdout = report["result"]["stdout"]
    shown, _, note = stdout.partition("\n[output was cut here: ")
    assert whole.startswith(shown) and len(shown) == 5 * 1024 * 1024
    (kept,) = (tmp_path / ".managed-agents" / "outputs").iterdir()
    assert kept.name in note and kept.read_text() == whole
    assert report["result"]["stderr"].endswith("10\n")


async def test_a_place_for_output_that_was_exchanged_for_a_link_is_not_used(tmp_path: Path, server: WorkServer) -> None:
    workdir, outside = tmp_path / "w", tmp_path / "outside"
    workdir.mkdir()
    outside.mkdir()
    (workdir / ".managed-agents").symlink_to(outside)
    item = server.put("exec", {"command": "seq 1 1000000"})
    async with fleet(server, workdir):
        (report,) = await done(server, item)
    assert "could not be saved" in report["result"]["stdout"]
    assert list(outside.iterdir()) == []


async def test_a_command_sees_nothing_of_the_worker(tmp_path: Path, server: WorkServer) -> None:
    item = server.put("exec", {"command": "env; ls /proc/self/fd; cat", "env": {"GIVEN": "1"}})
    async with fleet(server, tmp_path, {"PASSED": "2", "OTHER": "3"}, pass_env=("PASSED", "UNSET")):
        (report,) = await done(server, item)
    variables, _, descriptors = report["result"]["stdout"].partition("_=")
    assert "PASSED=2" in variables and "GIVEN=1" in variables
    assert "OTHER" not in variables and KEY not in variables and "MANAGED_AGENTS" not in variables
    assert set(descriptors.split()[1:]) <= {"0", "1", "2", "3"}


async def test_a_sandboxed_command_has_the_workdir_and_no_more(tmp_path: Path, server: WorkServer) -> None:
    workdir = tmp_path / "w"
    workdir.mkdir()
    (tmp_path / "secret.txt").write_text("out of sight")
    (workdir / "link").symlink_to(tmp_path / "secret.txt")
    command = f"cat {tmp_path}/secret.txt link ../secret.txt; echo hi > made.txt; echo x > /etc/x; cat made.txt"
    item = server.put("exec", {"command": command})
    async with fleet(server, workdir, sandbox="auto"):
        (report,) = await done(server, item)
    assert report["result"]["stdout"] == "hi\n"
    assert "out of sight" not in str(report)
    assert (workdir / "made.txt").read_text() == "hi\n"


async def test_a_sandboxed_command_reaches_the_hosts_that_are_allowed_and_no_others(
    tmp_path: Path, server: WorkServer
) -> None:
    head = r"printf 'GET http://other.example/ HTTP/1.1\r\nhost: other.example\r\n\r\n'"
    ask = f"echo $http_proxy; exec 3<>/dev/tcp/127.0.0.1/3128; {head} >&3; head -1 <&3"
    commands = [ask, "echo > /dev/tcp/1.1.1.1/80", "echo next"]
    items = [server.put("exec", {"command": command, "timeout_ms": 20_000}) for command in commands]
    try:
        async with fleet(server, tmp_path, sandbox="bubblewrap", allow_hosts=("api.example.com",)):
            refused, closed, _ = await done(server, *items)
    except OptionUnusable as unusable:
        pytest.skip(str(unusable))
    assert refused["result"]["stdout"].startswith("http://127.0.0.1:3128\nHTTP/1.1 403")
    assert closed["result"]["exitCode"] != 0
