"""Proves that code is given back, that everything works afterwards, and that nothing that was written is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import hashlib, json, ssl, sys, threading
import grpc, orjson, psycopg
from kit.released import release_code

def file_backed():
    fields = dict(line.split(":") for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
    return int(fields["Rss"].split()[0]) - int(fields["Anonymous"].split()[0])

def work():
    channel = grpc.insecure_channel("127.0.0.1:1")
    try:
        channel.unary_unary("/a/b")(b"", timeout=0.01)
    except grpc.RpcError as error:
        code = error.code().name
    return [hashlib.sha256(b"x").hexdigest(), orjson.dumps({"a": [1]}).decode(), psycopg.pq.version(), code,
            ssl.create_default_context().verify_mode.name]

expected, busy = work(), [True]
thread = threading.Thread(target=lambda: [work() for _ in iter(lambda: busy[0], False)])
thread.start()
before = file_backed()
named = [release_code() for _ in range(20)]
after = file_backed()
busy[0] = False
thread.join()
assert work() == expected
print(json.dumps({"named": named[0], "before": before, "after": after}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's call is Linux's")
def test_code_is_given_back_while_threads_run_it() -> None:
    import orjson

    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = orjson.loads(ended.stdout)
    assert told["named"] > 10_000_000
    assert told["after"] < told["before"] * 0.9


LOADS = """
import _ctypes, shutil, sys, threading
from pathlib import Path
import orjson
from kit.released import release_code

libraries = [shutil.copy(orjson.orjson.__file__, Path(sys.argv[1]) / f"{number}.so") for number in range(200)]
begun = threading.Event()
thread = threading.Thread(target=lambda: [begun.wait(10), *(_ctypes.dlopen(library, 2) for library in libraries)])
thread.start()
while thread.is_alive():
    assert release_code()
    begun.set()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's call is Linux's")
def test_code_is_given_back_while_another_thread_loads_some(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", LOADS, str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, ended.stderr
