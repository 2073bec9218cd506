"""Proves: from inside the sandbox there is no way to the host's files, processes, other sessions or secrets."""

import errno
import os

import pytest

from .conftest import Session

SOCKETS = """
import socket
for family, kind in ((2, 1), (2, 2), (10, 2), (16, 3)):
    try:
        socket.socket(family, kind)
        print("GOT")
    except OSError:
        print("refused", end=" ")
"""
PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


@pytest.mark.parametrize(
    "path",
    [
        "/root",
        "/home",
        PROJECT,
        "/work",
        "/var/lib",
        "/etc/shadow",
        "/etc/ssl/private",
        "/sys",
        "/boot",
        "/run/docker.sock",
        "/proc/1/root/home",
        "/proc/self/root/home",
        "/proc/1/cwd/../../../home",
        "/mnt/session/../../home",
        "/dev/sda",
        "/dev/vda",
        "/dev/mem",
        "/dev/kvm",
        "/dev/fuse",
        "/dev/net/tun",
        "/sys/fs/cgroup",
    ],
)
async def test_nothing_of_the_host_is_there(isolated, path):
    outcome = await isolated.bash(f"ls {path} 2>&1 && echo FOUND")
    assert "FOUND" not in outcome.text


@pytest.mark.parametrize(
    "command",
    [
        "touch /usr/x",
        "touch /etc/x",
        "touch /x",
        "mkdir /mnt/x",
        "touch /dev/x",
        "echo x > /etc/passwd",
        "echo x > /mnt/session/uploads/x",
        # Opened and not written: a test must not harm the host that it finds unprotected.
        "exec 7>>/proc/sys/kernel/core_pattern",
        "exec 7>>/proc/sys/kernel/randomize_va_space",
        "exec 7>>/proc/sys/vm/drop_caches",
        "exec 7>>/proc/sys/fs/binfmt_misc/register",
        "exec 7>>/proc/sysrq-trigger",
        "exec 7>>/proc/irq/default_smp_affinity",
        "exec 7>>/proc/self/oom_score_adj",
        "find /proc -maxdepth 3 -writable -type f 2>/dev/null | grep -q .",
        "mount -t tmpfs none /tmp",
        "mount -o remount,rw /usr",
        "umount /proc",
        "unshare -U true",
        "unshare -m true",
        "chroot / true",
        "mknod /tmp/disk b 8 0",
        "hostname other",
        "ip link add dummy0 type dummy",
        "exec 7</proc/kcore",
        "exec 7</proc/kmsg",
        "nsenter -t 1 -m true",
        "ln /usr/bin/env /tmp/env",
        "ln /workspace/f /mnt/session/outputs/f",
    ],
)
async def test_what_must_be_refused_is(isolated, command):
    await isolated.text("touch f")
    outcome = await isolated.bash(f"({command}) && echo DONE")
    assert "DONE" not in outcome.text


async def test_processes_of_the_host_are_neither_seen_nor_reached(isolated):
    pids = (await isolated.text("ls /proc | grep -c '^[0-9]'")).strip()
    assert int(pids) < 10
    outcome = await isolated.bash(f"kill -0 {os.getpid()} && echo ALIVE; cat /proc/{os.getpid()}/environ && echo READ")
    assert "ALIVE" not in outcome.text
    assert "READ" not in outcome.text


async def test_no_capability_is_left(isolated):
    text = await isolated.text("grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status")
    values = dict(line.split(":\t") for line in text.split("\n"))
    assert int(values["CapEff"], 16) == int(values["CapPrm"], 16) == int(values["CapAmb"], 16) == 0
    assert values["NoNewPrivs"] == "1"
    assert "uid=1000" in await isolated.text("id")


async def test_other_sessions_are_invisible(bubblewrap):
    one, two = Session(bubblewrap, "sess_one", {}), Session(bubblewrap, "sess_two", {})
    await one.text("echo secret-word > f; (exec -a marker-of-one sleep 60) >/dev/null 2>&1 &")
    seen = await two.bash("grep -rs secret-word / --include=f 2>/dev/null; cat /proc/*/cmdline | tr '\\0' ' '")
    assert "secret-word\n" not in seen.text
    assert "/f:secret-word" not in seen.text
    assert "marker-of-one" not in seen.text


async def test_memory_that_is_shared_is_bounded(isolated):
    outcome = await isolated.bash("head -c 200000000 /dev/zero > /dev/shm/x")
    assert outcome.is_error
    assert int(await isolated.text("stat -c %s /dev/shm/x")) <= 64 * 1024 * 1024


async def test_links_made_inside_lead_the_file_tools_nowhere(isolated, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    await isolated.text(
        f"ln -s {secret} a; ln -s ../../../../../../..{secret} b; ln -s / c; ln -s /proc/self/root{secret} d;"
        "mkfifo fifo; ln -s /dev/zero zero"
    )
    for path in ("a", "b", f"c{secret}", "d", "fifo", "zero", "/proc/1/root/etc/passwd", "/dev/zero"):
        assert "SECRET" not in (await isolated.tool("read", file_path=path)).text
        await isolated.tool("write", file_path=path, content="overwritten")
    assert secret.read_text() == "SECRET"
    found = await isolated.tool("grep", pattern="SECRET")
    assert found.text == "No matches."


async def test_landlock_confines_files_and_sockets(make_manager, tmp_path):
    manager = make_manager("landlock")
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    one, two = Session(manager, "sess_one", {}), Session(manager, "sess_two", {})
    await two.text("echo SECRET > f")
    other = (await two.text("pwd")) + "/f"
    for command in (
        f"cat {secret}",
        f"cat {other}",
        f"echo x > {secret}",
        "cat /etc/shadow",
        f"cat /proc/{os.getpid()}/environ",
        f"ln {secret} stolen",
    ):
        outcome = await one.bash(f"{command} && echo DONE")
        assert "SECRET" not in outcome.text
        assert "DONE" not in outcome.text
    await one.tool("write", file_path="sockets.py", content=SOCKETS)
    assert (await one.bash("python3 sockets.py")).text == "refused " * 4
    assert "CapEff:\t0000000000000000" in await one.text("cat /proc/self/status")
    assert secret.read_text() == "SECRET"
    await manager.aclose()


NAMES = r"""
import os, sys
wanted = sys.argv[1].encode()
for process in filter(str.isdigit, os.listdir("/proc")):
    for folder, subfolders, files in os.walk(f"/proc/{process}"):
        for name in (*files, *subfolders):
            path = f"{folder}/{name}"
            try:
                text = os.fsencode(os.readlink(path)) if os.path.islink(path) else b""
                if not text and os.path.isfile(path) and name not in ("mem", "pagemap", "clear_refs"):
                    with open(path, "rb") as file:
                        text = file.read(1 << 20)
            except OSError:
                continue
            if wanted in text.replace(b"\\", b""):
                print(name)
"""


async def test_nothing_names_the_folder_of_the_data(bubblewrap, isolated):
    root = bubblewrap._providers["local"].store.root
    await isolated.tool("write", file_path="names.py", content=NAMES)
    # From another process than the searching one, whose own arguments have the word.
    found = await isolated.text(f"printf %s {root.name} > word; python3 names.py workspace | sort -u")
    assert "mountinfo" in found.split()
    await isolated.tool("write", file_path="names.py", content=NAMES.replace("sys.argv[1]", 'open("word").read()'))
    named = set((await isolated.text("python3 names.py | sort -u")).split())
    # The kernel tells there, and nowhere else, what part of its file system a mount shows.
    assert named <= {"mountinfo"}, named
    environment = await isolated.text("tr '\\0' '\\n' < /proc/1/environ; env")
    assert root.name not in environment


KEYRINGS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[__import__("os").uname().machine]
print(libc.syscall(add_key, b"user", b"of the session", b"secret", 6, -4), ctypes.get_errno())
print(libc.syscall(keyctl, 0, -4, 1), ctypes.get_errno())
"""


async def test_keyrings_of_the_host_and_of_other_sessions_cannot_be_reached(bubblewrap, isolated):
    await isolated.tool("write", file_path="keys.py", content=KEYRINGS)
    assert await isolated.text("python3 keys.py") == f"-1 {errno.ENOSYS}\n-1 {errno.ENOSYS}"


async def test_no_descriptor_is_left_open_in_the_shell(bubblewrap, isolated):
    assert "memfd" not in await isolated.text("ls -l /proc/1/fd /proc/$$/fd /proc/self/fd")
