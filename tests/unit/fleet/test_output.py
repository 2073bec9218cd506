"""The end of a command is found in its stream wherever the stream is cut, and nothing else is taken for it."""

import asyncio
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.worker.fleet.tool.output import MarkedStream

MARKER = b"0123456789abcdef"
END = b"\0" + MARKER + b" 3\0"
# What comes near an end.
pieces = st.lists(
    st.sampled_from([b"a", b"\0", b"\0" + MARKER[:5], MARKER, b"\0" + MARKER, b" 3\0", b"\n"]), max_size=12
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=pieces, after=pieces, cuts=st.lists(st.integers(1, 9), min_size=1, max_size=60), ends=st.booleans())
def test_the_end_is_found_wherever_the_stream_is_cut(
    before: list[bytes], after: list[bytes], cuts: list[int], ends: bool
) -> None:
    said = b"".join(before)
    if MARKER + b" " in said:
        return
    data = said + (END + b"".join(after) if ends else b"")

    async def play() -> tuple[str, int | None]:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        stream = MarkedStream(reading, lambda: None, MARKER)
        at = 0
        for size in [*cuts, len(data)]:
            stream._take(data[at : at + size])
            at += size
        os.close(writing)
        await stream.close(wait=False)
        os.close(reading)
        return stream.text(), stream.end.result() if stream.end.done() else None

    assert asyncio.run(play()) == (said.decode(), 3 if ends else None)
