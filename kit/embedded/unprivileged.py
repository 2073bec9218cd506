"""Run a program that refuses to be root, for a root user. Executed as a script; imports nothing of ours.

    python -I -S unprivileged.py OWNED_FOLDER... -- COMMAND...

Best: a new user namespace in which the program sees itself as uid 65534 while the kernel still counts it as the same
user, so that files stay root's and no account is needed. Where namespaces are closed (most containers): a change to
the account `postgres` or `nobody`, to which the folders are given first.
"""

import ctypes
import os
import pwd
import sys

_CLONE_NEWUSER = 0x10000000
_NOBODY = 65534


def _enter_namespace() -> bool:
    uid, gid = os.getuid(), os.getgid()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWUSER) != 0:
            return False
        for name, text in (
            ("setgroups", "deny"),
            ("gid_map", f"{_NOBODY} {gid} 1"),
            ("uid_map", f"{_NOBODY} {uid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except (OSError, AttributeError):
        return False
    return True


def _namespace_works() -> bool:
    """Tried in a child: a half-made namespace can't be left again."""
    child = os.fork()
    if child == 0:
        os._exit(0 if _enter_namespace() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _give(folder: str, uid: int, gid: int) -> None:
    if os.stat(folder).st_uid == uid:
        return
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            os.chown(os.path.join(parent, name), uid, gid, follow_symlinks=False)
    os.chown(folder, uid, gid)


def _account() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    sys.exit("There is neither an account `postgres` nor `nobody`, and user namespaces are closed here.")


def main(folders: list[str], command: list[str]) -> None:
    if _namespace_works():
        for folder in folders:
            _give(folder, os.getuid(), os.getgid())
        _enter_namespace()
    else:
        account = _account()
        for folder in folders:
            _give(folder, account.pw_uid, account.pw_gid)
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
        for path in (*folders, command[0]):
            if not os.access(path, os.X_OK):
                sys.exit(
                    f"The account {account.pw_name} can't reach {path}. User namespaces are closed here, so as root "
                    "choose a data directory and an installation outside private folders, or run as an ordinary user."
                )
    os.execv(command[0], command)


if __name__ == "__main__":
    split = sys.argv.index("--")
    main(sys.argv[1:split], sys.argv[split + 1 :])
