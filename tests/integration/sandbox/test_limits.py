"""Proves: a session cannot take the host down, by processes, memory, processor time or output."""

import os
import time
from dataclasses import replace

import pytest

from kit.testing import await_until
from services.worker.sandbox.cgroups import ControlGroups, SessionGroup

from .conftest import LIMITS, MIB, Session, processes_with


async def test_a_fork_bomb_is_contained(bubblewrap, isolated):
    if os.geteuid() == 0 and any(note.startswith("Processes:") for note in bubblewrap.describe().notes):
        pytest.skip("root without a pids cgroup: said in describe()")
    began = time.monotonic()
    await isolated.bash("bomb() { bomb | bomb & }; bomb; sleep 4801", timeout_ms=1500)
    assert time.monotonic() - began < 30
    await await_until(lambda: not processes_with("sleep\x004801"), 20)
    assert await isolated.text("echo fine") == "fine"


_FORKS = """import os
made = 0
for _ in range(200):
    try:
        if os.fork() == 0:
            os.execlp("sleep", "sleep", "4802")
        made += 1
    except BlockingIOError:
        pass
print(made)
"""


async def test_the_number_of_processes_is_bounded(bubblewrap, isolated):
    if os.geteuid() == 0 and any(note.startswith("Processes:") for note in bubblewrap.describe().notes):
        pytest.skip("root without a pids cgroup: said in describe()")
    # Not the shell's own forks: it waits for 15 seconds before it gives one up.
    outcome = await isolated.bash(f"python3 -c '{_FORKS}'")
    assert 0 < int(outcome.text.split()[0]) <= LIMITS.processes
    assert len(processes_with("sleep\x004802")) <= LIMITS.processes
    isolated.sandbox.interrupt()
    await await_until(lambda: not processes_with("sleep\x004802"), 20)
    assert outcome is not None


async def test_a_memory_hog_is_ended_and_the_host_is_fine(make_manager):
    manager = make_manager("bubblewrap", limits=replace(LIMITS, address_space_bytes=512 * 1024 * 1024))
    session = Session(manager, "sess_one", {})
    outcome = await session.bash("python3 -c 'x = bytearray(2 * 10**9)'")
    assert outcome.is_error
    assert "MemoryError" in outcome.text or "Killed" in outcome.text
    assert await session.text("echo fine") == "fine"
    await manager.aclose()


async def test_many_processes_share_one_memory_limit(make_manager):
    manager = make_manager("bubblewrap")
    if any(note.startswith("Memory:") for note in manager.describe().notes):
        pytest.skip("no memory cgroup: said in describe()")
    session = Session(manager, "sess_one", {})
    hog = "x = b'x' * 100_000_000; import time; time.sleep(20)"
    outcome = await session.bash(f'for i in 1 2 3 4 5 6; do python3 -c "{hog}" & done; wait -n', timeout_ms=30_000)
    assert outcome.is_error
    assert await session.text("echo fine") == "fine"
    await manager.aclose()


async def test_processor_time_is_bounded(make_manager):
    manager = make_manager("bubblewrap", limits=replace(LIMITS, cpu_seconds=1))
    session = Session(manager, "sess_one", {})
    outcome = await session.bash("bash -c 'while :; do :; done'", timeout_ms=60_000)
    assert outcome.is_error
    assert "[exit code: 1" in outcome.text
    assert await session.text("echo fine") == "fine"
    await manager.aclose()


async def test_open_files_and_core_dumps_are_bounded(isolated):
    assert await isolated.text("ulimit -n; ulimit -c; ulimit -Hn") == "256\n0\n256"


async def test_a_command_that_fills_the_disk_is_ended(make_manager):
    manager = make_manager("bubblewrap", limits=replace(LIMITS, disk_bytes=4 * 1024 * 1024))
    session = Session(manager, "sess_one", {})
    outcome = await session.bash("head -c 9000000 /dev/zero > f; sleep 60")
    assert outcome.is_error
    assert "bytes of disk" in outcome.text
    await manager.aclose()


async def test_what_fills_the_disk_in_the_background_is_ended(make_manager):
    manager = make_manager("bubblewrap", limits=replace(LIMITS, disk_bytes=4 * 1024 * 1024))
    session = Session(manager, "sess_one", {})
    await session.text("(head -c 9000000 /dev/zero > f; exec sleep 4803) > /dev/null 2>&1 & echo")
    await await_until(lambda: processes_with("sleep\x004803"), 20)
    await await_until(lambda: not processes_with("sleep\x004803"), 20)
    assert (await session.tool("write", file_path="g", content="x")).is_error
    await session.bash("rm f")
    assert await session.text("echo fine") == "fine"
    await manager.aclose()


# Ways to keep a file that has no name any more: a descriptor, one that only a thread has, a mapping without
# a descriptor, a file that never had a name, and one in a process that left its parent.
_HOLDERS = {
    "descriptor": "f = fill(open('f', 'w+b')); os.unlink('f')",
    "thread": """
def hold():
    os.unshare(0x400) if hasattr(os, "unshare") else ctypes.CDLL(None).unshare(0x400)
    f = fill(open('f', 'w+b'))
    os.unlink('f')
    time.sleep(60)
threading.Thread(target=hold).start()""",
    "mapping": "f = fill(open('f', 'w+b')); m = mmap.mmap(f.fileno(), 9000000); f.close(); os.unlink('f')",
    "never named": "f = fill(os.fdopen(os.open('.', os.O_TMPFILE | os.O_RDWR), 'w+b'))",
    "orphan": "f = fill(open('f', 'w+b')); os.unlink('f'); os.fork() and os._exit(0); os.setsid()",
}
_HOLD = """import ctypes, mmap, os, threading, time
def fill(file):
    file.write(bytes(9000000))
    file.flush()
    return file
%s
time.sleep(60)
"""


@pytest.mark.parametrize("how", _HOLDERS)
@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
async def test_a_deleted_file_that_is_still_held_counts(make_manager, kind, how):
    manager = make_manager(kind, limits=replace(LIMITS, disk_bytes=4 * MIB))
    session = Session(manager, "sess_one", {})
    await session.tool("write", file_path="hold.py", content=_HOLD % _HOLDERS[how])
    outcome = await session.bash("python3 hold.py; sleep 60", timeout_ms=30_000)
    assert outcome.is_error
    assert "bytes of disk" in outcome.text
    # With what held it gone, so is the file.
    assert not (await session.tool("write", file_path="g", content="x")).is_error
    assert await session.text("echo fine") == "fine"
    await manager.aclose()


_SEND = """import os, socket, time
def send(sockets, file):
    socket.send_fds(sockets[0], [b"x"], [file.fileno()])
    file.close()
f = open("f", "wb")
f.write(bytes(9000000))
f.flush()
os.unlink("f")
pair = socket.socketpair()
send(pair, f)
%s
time.sleep(60)
"""


async def test_a_file_that_stays_on_its_way_between_processes_ends_the_command(make_manager, monkeypatch):
    monkeypatch.setattr("services.worker.sandbox.local._IN_FLIGHT_SECONDS", 1.0)
    manager = make_manager("bubblewrap", limits=replace(LIMITS, disk_bytes=4 * MIB))
    session = Session(manager, "sess_one", {})
    # The socket that carries the file may itself be carried.
    await session.tool(
        "write", file_path="send.py", content=_SEND % "outer = socket.socketpair(); send(outer, pair[1])"
    )
    outcome = await session.bash("python3 send.py; sleep 60", timeout_ms=30_000)
    assert outcome.is_error
    assert "hides its open files" in outcome.text
    received = "socket.recv_fds(pair[1], 1, 1); os.write(1, b'received'); raise SystemExit"
    await session.tool("write", file_path="send.py", content=_SEND.replace("9000000", "9000") % received)
    assert await session.text("python3 send.py") == "received"
    await manager.aclose()


async def test_memory_that_has_no_file_is_no_disk(make_manager):
    manager = make_manager("bubblewrap", limits=replace(LIMITS, disk_bytes=4 * MIB))
    session = Session(manager, "sess_one", {})
    hold = "import mmap, os, time; m = mmap.mmap(-1, 9000000); m.write(bytes(9000000)); f = os.memfd_create('x'); "
    hold += (
        "os.write(f, bytes(9000000)); g = open('/dev/shm/x', 'wb'); g.write(bytes(9000000)); os.unlink('/dev/shm/x')"
    )
    await session.text(f'python3 -c "{hold}; time.sleep(3)"')
    await manager.aclose()


_NEST = """python3 -c '
import os
for _ in range({levels}):
    os.mkdir("{name}")
    os.chdir("{name}")
with open("f", "wb") as file:
    file.write(bytes(100000))
'"""


async def test_folders_deeper_than_a_stack_are_measured_and_removed(bubblewrap, isolated):
    await isolated.bash(_NEST.format(levels=1500, name="d"))
    assert await isolated.text("echo fine") == "fine"
    await bubblewrap.remove(isolated.id)
    assert not bubblewrap._providers["local"].store._path(isolated.id).exists()


async def test_nothing_hides_from_the_disk_limit_in_a_long_path(bubblewrap, isolated):
    outcome = await isolated.bash(_NEST.format(levels=40, name="d" * 200))
    assert "cannot be measured" in outcome.text
    assert (await isolated.tool("write", file_path="g", content="x")).is_error
    await isolated.bash("rm -rf d*")
    assert not (await isolated.tool("write", file_path="g", content="x")).is_error
    await isolated.bash(_NEST.format(levels=40, name="d" * 200) + "; mkdir -p locked/in; chmod 0 locked/in locked")
    await bubblewrap.remove(isolated.id)
    assert not bubblewrap._providers["local"].store._path(isolated.id).exists()


async def test_groups_are_removed_with_the_sandbox(bubblewrap, isolated):
    await isolated.text("true")
    groups = bubblewrap._providers["local"].groups
    mine = [path for base in set(groups._bases.values()) for path in base.glob(f"{groups._owner}*")]
    assert len(mine) == len(set(groups._bases.values()))
    await isolated.sandbox.close()
    nothing = SessionGroup(())

    def gone() -> bool:
        groups.remove(nothing)
        return not any(path.exists() for path in mine)

    await await_until(gone, 20)


async def test_groups_that_a_killed_runner_left_are_swept(bubblewrap):
    first = ControlGroups()
    if not first.memory:
        pytest.skip("no writable cgroup")
    left = next(iter(set(first._bases.values()))) / "managed-agents-4194305-1-abc-1"
    left.mkdir()
    ControlGroups()
    assert not left.exists()
