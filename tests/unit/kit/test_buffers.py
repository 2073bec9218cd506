"""What is told to the C library about large buffers is taken, where it is the one that knows of it."""

import platform
import subprocess
import sys

_TELL = "from kit.buffers import keep_buffers, share_one_heap; print(share_one_heap() and keep_buffers())"


def test_the_c_library_takes_it() -> None:
    told = subprocess.run([sys.executable, "-c", _TELL], capture_output=True, text=True, check=True).stdout.strip()
    assert told == str(platform.libc_ver()[0] == "glibc")
