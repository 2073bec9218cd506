"""How quick the machine is at the moment. Neighbours make it vary by a factor of two, which no figure of ours tells."""

import time
from statistics import median

_LOOPS = 15
_STEPS = 100_000


def fixed_work_ms() -> float:
    """What the same piece of Python takes, as a median of some: figures compare where this is alike."""
    return median(_work() for _ in range(_LOOPS)) * 1000


def _work() -> float:
    began = time.perf_counter()
    total = 0
    for step in range(_STEPS):
        total += step & 7
    return time.perf_counter() - began
