"""The process that starts sandboxes: small, single-threaded, standard library only.

The runner cannot fork safely (threads, gRPC) nor enter namespaces, so it starts
this program once, by path, and asks it over a socket. Each request carries the
shell's pipes; the child joins its cgroups, enters its namespaces or Landlock
rules, hands out a listening socket made inside its network namespace, and
becomes the sandbox. This process is the parent of every sandbox: it reaps them,
kills them on request (so no recycled pid is ever hit), and when the runner goes,
by whatever means, it kills them all and ends.

Protocol (SEQPACKET, JSON): `{"op": "spawn", "id", "argv", "env", "cwd",
"cgroups", "network_port", "landlock", "tag"}` with the descriptors
stdin, output, status, exit, reply; `{"op": "kill", "id"}`. On `reply` comes
`ready <pid>` (with the listening socket), or a text starting with `failed`; the
child's exit code is written to `exit`.

A sandbox whose child has only to join its groups is started without a fork of
this program, which costs more than the rest: this program puts it there.
"""

import contextlib
import fcntl
import gc
import json
import os
import select
import selectors
import signal
import socket
import struct
import sys
from collections import namedtuple
from collections.abc import Iterator

# Run by path and isolated from every other module of ours: the neighbour is found by its folder, after the library's.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
from confinement import (
    SECCOMP_BY_MACHINE,
    check,
    drop_capabilities,
    filter_program,
    landlock_abi,
    libc,
    refuse_sockets,
    restrict_files,
)

STATUS_FD = 9
# Of bubblewrap, while it starts.
_OPTIONS_FD = 10
_FILTER_FD = 11
_MESSAGE_BYTES = 256 * 1024
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x1 | 0x40
_LISTEN_BACKLOG = 128
# What this program treats in its own way, and no sandbox should.
_DEFAULT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
_KILL_ROUNDS = 50
_REMOVE_ROUNDS = 100
_REMOVE_PAUSE_SECONDS = 0.01


def main() -> None:
    """Serve requests until the runner closes its end."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Only the runner decides when to end; a Ctrl-C in its terminal is its business.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    # The platform's own files are private; those of the agent have the modes that its programs expect.
    os.umask(0o022)
    sandboxes = _Sandboxes()
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)
    # What exists now is shared with every child; a collection would unshare it.
    gc.collect()
    gc.freeze()
    while True:
        for key, _ in selector.select():
            if key.fileobj is control:
                if not _serve_one(control, sandboxes):
                    sandboxes.end_all()
                    return
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                sandboxes.reap()


def _serve_one(control: socket.socket, sandboxes: "_Sandboxes") -> bool:
    try:
        data, fds, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 8)
    except OSError:
        return False
    for fd in fds:
        os.set_inheritable(fd, False)
    if not data:
        return False
    request = json.loads(data)
    if request["op"] == "spawn":
        sandboxes.spawn(request, fds)
    else:
        sandboxes.kill(request["id"])
    return True


# What is needed to report one sandbox's end, to kill it and to tidy up after it.
_Running = namedtuple("_Running", "identity exit_fd tag cgroups")


class _Sandboxes:
    """Who runs, by pid."""

    def __init__(self) -> None:
        self._by_pid: dict[int, _Running] = {}

    def spawn(self, request: dict, fds: list[int]) -> None:
        """Start the child of one request."""
        exit_fd, reply_fd = fds[3], fds[4]
        # Only a fork of this program can enter a network of its own and lay down its rights before it becomes another.
        forks = bool(request["tag"] or request["network_port"])
        try:
            # Looked at before anything is started: what can't be told to bubblewrap is the end of this request alone.
            options = b"" if forks else _options(_parts(request["argv"])[1])
            pid, options_fd = (os.fork(), -1) if forks else _start_bubblewrap(request, fds)
        except (OSError, ValueError) as error:
            with socket.socket(fileno=reply_fd) as reply:
                reply.send(f"failed: no process can be started: {error}".encode()[:4000])
            for fd in fds[:4]:
                os.close(fd)
            return
        if pid == 0:
            _become(request, fds)
        self._by_pid[pid] = _Running(request["id"], exit_fd, request["tag"], request["cgroups"])
        if not forks:
            _admit(pid, request["cgroups"], options, options_fd, reply_fd)
        for fd in (*fds[:3], reply_fd):
            os.close(fd)

    def reap(self) -> None:
        """Take the dead off the list and report their exit codes."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            # Others are strays that a sandbox without a process namespace left behind.
            if pid in self._by_pid:
                self._ended(self._by_pid.pop(pid), status)

    def kill(self, wanted: int) -> None:
        """Kill one sandbox; with a process namespace its death ends all inside."""
        for pid, running in self._by_pid.items():
            if running.identity == wanted:
                self._kill(pid, running)
                return

    def end_all(self) -> None:
        """Kill every sandbox and remove its control groups, since nobody else will."""
        for pid, running in self._by_pid.items():
            self._kill(pid, running)
        for pid, running in self._by_pid.items():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self._kill_orphans()
            for path in running.cgroups:
                _remove_group(os.path.dirname(path))

    def _kill(self, pid: int, running: _Running) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if running.tag:
            _kill_tagged(running.tag)

    def _kill_orphans(self) -> None:
        """A bwrap that is killed while it sets itself up leaves a child that waits for ever, and comes to us."""
        if any(running.tag for running in self._by_pid.values()):
            return
        for pid in _children():
            if pid not in self._by_pid:
                os.kill(pid, signal.SIGKILL)

    def _ended(self, running: _Running, status: int) -> None:
        _kill_tagged(running.tag) if running.tag else self._kill_orphans()
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            os.write(running.exit_fd, str(code if code >= 0 else 128 - code).encode())
        os.close(running.exit_fd)


def _remove_group(folder: str) -> None:
    for _ in range(_REMOVE_ROUNDS):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:
            # Its last processes are still dying.
            select.select((), (), (), _REMOVE_PAUSE_SECONDS)


def _kill_tagged(tag: str) -> None:
    """Kill all whose environment carries the tag, again until none is left.

    Only for kinds without a process namespace. Forking in a race is beaten by
    repetition; a process that cleared its environment is found by its parent.
    """
    needle = tag.encode()
    me = os.getpid()
    for _ in range(_KILL_ROUNDS):
        doomed = _find_tagged(needle, me)
        for pid in doomed:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not doomed:
            return


def _children() -> list[int]:
    """The processes whose parent is this one, zombies among them."""
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children") as stream:
            return [int(pid) for pid in stream.read().split()]
    except FileNotFoundError:
        # A kernel without such lists: look at every process of the host.
        return [pid for pid, parent in _living() if parent == me]


def _living() -> Iterator[tuple[int, int]]:
    """Every process that is no zombie, with its parent."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
            if fields[0] != b"Z":
                yield int(name), int(fields[1])


def _find_tagged(needle: bytes, me: int) -> set[int]:
    parents = {pid: parent for pid, parent in _living() if pid != me}
    doomed: set[int] = set()
    for pid in parents:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as stream:
            if needle in stream.read():
                doomed.add(pid)
    for pid in parents:
        above = pid
        while above in parents and above not in doomed:
            above = parents[above]
        if above in doomed:
            doomed.add(pid)
    return doomed


def _start_bubblewrap(request: dict, fds: list[int]) -> tuple[int, int]:
    """Start bubblewrap, which waits for its options; its pid, and the descriptor that takes them."""
    binary, _, program = _parts(request["argv"])
    options_read, options_write = os.pipe2(os.O_CLOEXEC)
    opened = [options_read]
    try:
        given = [(0, fds[0]), (1, fds[1]), (2, fds[1]), (STATUS_FD, fds[2]), (_OPTIONS_FD, options_read)]
        if (filter_fd := _filter(os.MFD_CLOEXEC)) >= 0:
            opened.append(filter_fd)
            given.append((_FILTER_FD, filter_fd))
        # Descriptors arrive with any number; keep clear of those that are assigned.
        actions = []
        for target, fd in given:
            opened.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 32))
            actions.append((os.POSIX_SPAWN_DUP2, opened[-1], target))
        line = _bubblewrap_line(_OPTIONS_FD, _FILTER_FD if filter_fd >= 0 else -1, program)
        pid = os.posix_spawn(binary, line, request["env"], file_actions=actions, setsigdef=_DEFAULT_SIGNALS)
    except BaseException:
        os.close(options_write)
        raise
    finally:
        for fd in opened:
            os.close(fd)
    return pid, options_write


def _admit(pid: int, cgroups: list, options: bytes, options_fd: int, reply_fd: int) -> None:
    """Let a bubblewrap go on, as a member of its groups: before it has its options it starts nothing."""
    try:
        for path in cgroups:
            with open(path, "w") as stream:
                stream.write(str(pid))
        answer = f"ready {pid}"
    except OSError as error:
        os.kill(pid, signal.SIGKILL)
        answer = f"failed: {type(error).__name__}: {error}"
    # One that has ended meanwhile is told as such by its exit.
    with contextlib.suppress(BrokenPipeError), open(options_fd, "wb") as stream:
        stream.write(options)
    reply = socket.socket(fileno=reply_fd)
    with contextlib.suppress(OSError):
        reply.send(answer.encode()[:4000])
    # It is closed with the others.
    reply.detach()


def _become(request: dict, fds: list[int]) -> None:
    """Turn this forked child into the sandbox; never returns."""
    # Descriptors arrive with any number; keep clear of those that are assigned below.
    stdin, output, status, _, reply_fd = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 32) for fd in fds)
    reply = socket.socket(fileno=reply_fd)
    try:
        for path in request["cgroups"]:
            with open(path, "w") as stream:
                stream.write("0")
        listener = _network(request["network_port"]) if request["network_port"] else None
        os.dup2(stdin, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(status, STATUS_FD)
        for each in _DEFAULT_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        os.chdir(request["cwd"])
        if request["tag"]:
            os.setsid()
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if request["landlock"]:
            drop_capabilities()
            restrict_files(request["landlock"])
            refuse_sockets()
        ready = f"ready {os.getpid()}".encode()
        if listener is not None:
            socket.send_fds(reply, [ready], [listener.fileno()])
        else:
            reply.send(ready)
        argv = request["argv"]
        # A tag stands for a shell without a namespace of processes, so without bubblewrap.
        if not request["tag"]:
            _, options, program = _parts(argv)
            options_fd = _memory_file("options", _options(options), 0)
            argv = _bubblewrap_line(options_fd, _filter(0), program)
        os.execve(request["argv"][0], argv, request["env"])
    except BaseException as error:
        with contextlib.suppress(OSError):
            reply.send(f"failed: {type(error).__name__}: {error}".encode()[:4000])
    os._exit(127)


def _network(port: int) -> socket.socket:
    """Enter a network of our own with nothing but lo, and listen there."""
    uid, gid = os.geteuid(), os.getegid()
    # Root may lack the capability in a container; then it goes the way of a user.
    if uid != 0 or libc.unshare(_CLONE_NEWNET) < 0:
        check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as stream:
                stream.write(text)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    fcntl.ioctl(listener, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_RUNNING))
    listener.bind(("127.0.0.1", port))
    listener.listen(_LISTEN_BACKLOG)
    return listener


def _bubblewrap_line(options_fd: int, filter_fd: int, program: list) -> list:
    """The command line of bubblewrap with its options in a file: the line itself can be read inside the sandbox.

    Bubblewrap loads the filter just before the shell.
    """
    filtered = ["--seccomp", str(filter_fd)] if filter_fd >= 0 else []
    return ["bwrap", *filtered, "--args", str(options_fd), *program]


def _filter(flags: int) -> int:
    """A descriptor of the filter on system calls; -1 where this kind of machine has none."""
    if os.uname().machine not in SECCOMP_BY_MACHINE:
        return -1
    return _memory_file("filter", filter_program(sockets=True), flags)


def _parts(argv: list) -> tuple[str, list, list]:
    """The binary, its options, and from `--` on the program that is run inside."""
    end = argv.index("--") if "--" in argv else len(argv)
    return argv[0], argv[1:end], argv[end:]


def _options(options: list) -> bytes:
    """As `--args` reads them. ValueError for what no argument can be: one with a zero byte would become two."""
    if any("\0" in option for option in options):
        raise ValueError("embedded null byte")
    return b"".join(os.fsencode(option) + b"\0" for option in options)


def _memory_file(name: str, data: bytes, flags: int) -> int:
    """A descriptor from which the next program reads `data`."""
    fd = os.memfd_create(name, flags)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def probe() -> None:
    """Print as JSON what this host lets a sandbox do; run with `--probe`."""
    found: dict = {"landlock_abi": landlock_abi(), "seccomp": os.uname().machine in SECCOMP_BY_MACHINE}
    try:
        _network(3128).close()
        found["network"] = ""
    except OSError as error:
        found["network"] = str(error)
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "--probe":
        probe()
    else:
        main()
