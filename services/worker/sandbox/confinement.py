"""How the launcher's child gives up rights before it becomes the sandbox: capabilities, Landlock, seccomp.

Standard library only, and imported by the launcher from its own folder. Owns the
numbers of the kernel's interfaces; each function confines the calling process.
"""

import ctypes
import errno
import os
import socket
import struct

_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """Pass on what the kernel answered, or raise what it refused with."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def drop_capabilities() -> None:
    """Give up what root could do in spite of Landlock, such as reading other processes' memory."""
    if os.geteuid() == 0:
        for capability in range(64):
            # The first number that the kernel does not know ends the list.
            if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
                if ctypes.get_errno() != errno.EINVAL:
                    check(-1, "capabilities")
                break


# Landlock: https://docs.kernel.org/userspace-api/landlock.html
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_FS_EXECUTE, _FS_WRITE_FILE, _FS_READ_FILE, _FS_READ_DIR, _FS_IOCTL_DEV = 1, 2, 4, 8, 1 << 15
_NET_CONNECT_TCP = 2
_FS_READ = _FS_EXECUTE | _FS_READ_FILE | _FS_READ_DIR
# Number of file system rights that each version of the interface knows.
_FS_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}


def landlock_abi() -> int:
    """The version of the kernel's Landlock, 0 where there is none."""
    return max(0, libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, 1))


def restrict_files(rules: dict) -> None:
    """Confine this process and its children to the given paths; no TCP but to the ports in `connect`, if any."""
    abi = landlock_abi()
    fs_rights = (1 << _FS_RIGHTS_BY_ABI.get(abi, 16)) - 1
    tcp_rights = 3 if abi >= 4 else 0
    scopes = 3 if abi >= 6 else 0
    fields = [fs_rights]
    if abi >= 4:
        fields.append(tcp_rights)
    if abi >= 6:
        fields.append(scopes)
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = check(libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0), "landlock")
    for paths, rights in ((rules["read"], _FS_READ), (rules["write"], fs_rights), (rules["device"], _FS_IOCTL_DEV | 6)):
        for path in paths:
            _landlock_path(ruleset, path, rights & fs_rights)
    for port in rules.get("connect", ()) if abi >= 4 else ():
        rule = struct.pack("=QQ", _NET_CONNECT_TCP, port)
        check(libc.syscall(_LANDLOCK_ADD_RULE, ruleset, 2, rule, 0), "landlock port")
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    check(libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock")
    os.close(ruleset)


def _landlock_path(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            rights &= _FS_EXECUTE | _FS_WRITE_FILE | _FS_READ_FILE | _FS_IOCTL_DEV | 1 << 14
        rule = struct.pack("=Qi", rights, fd)
        check(libc.syscall(_LANDLOCK_ADD_RULE, ruleset, 1, rule, 0), "landlock rule")
    finally:
        os.close(fd)


# What no namespace and no Landlock rule confines: the kernel keyrings of the user outside, which other
# sessions share, and kernel interfaces of which io_uring could make sockets unseen. By machine: the
# architecture's number, socket(2), and add_key, request_key, keyctl, perf_event_open, bpf, userfaultfd, io_uring_setup.
SECCOMP_BY_MACHINE = {
    "x86_64": (0xC000003E, 41, (248, 249, 250, 298, 321, 323, 425)),
    "aarch64": (0xC00000B7, 198, (217, 218, 219, 241, 280, 282, 425)),
}


def filter_program(*, sockets: bool) -> bytes:
    """Refuse those calls, and without `sockets` also sockets of every family but AF_UNIX."""
    audit_arch, socket_number, refused = SECCOMP_BY_MACHINE[os.uname().machine]
    allow, absent, no_family = 0x7FFF0000, 0x00050000 | errno.ENOSYS, 0x00050000 | errno.EAFNOSUPPORT
    steps = [
        (0x20, 0, 0, 4),  # the architecture of the call
        (0x15, 1, 0, audit_arch),
        (0x06, 0, 0, absent),
        (0x20, 0, 0, 0),  # its number
        (0x35, 0, 1, 0x40000000),  # x32 numbers would get around the next tests
        (0x06, 0, 0, absent),
    ]
    for number in refused:
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, absent)]
    if not sockets:
        steps += [
            (0x15, 0, 3, socket_number),
            (0x20, 0, 0, 16),  # its first argument, the family
            (0x15, 1, 0, socket.AF_UNIX),
            (0x06, 0, 0, no_family),
        ]
    steps.append((0x06, 0, 0, allow))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def refuse_sockets() -> None:
    """Landlock says nothing on UDP, raw and netlink sockets; from here on a filter does."""
    program = filter_program(sockets=False)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    check(libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")
