"""Large buffers are kept for the next one, which then costs no fresh pages."""

import subprocess
import sys

import pytest

_STREAM = """
import resource, sys
from kit.buffers import keep_buffers
if sys.argv[1] == "kept" and not keep_buffers():
    sys.exit(3)
for _ in range(10):
    b"x" * 1_000_000 + b"y"
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    pieces = [bytes(250_000) for _ in range(4)]
    b"".join(pieces)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_stream_of_buffers_takes_no_fresh_pages() -> None:
    found = subprocess.run([sys.executable, "-c", _STREAM, "kept"], capture_output=True, text=True, check=False)
    if found.returncode == 3:
        pytest.skip("this C library has no such setting")
    assert found.returncode == 0, found.stderr
    # 200 buffers of 1 MB are 49,000 pages of 4 KiB.
    assert int(found.stdout) < 5_000
