"""How long to wait after a failure: longer each time, and never in step with other workers.

backoff = Backoff()
await asyncio.sleep(backoff.next_seconds())     # 0.1 to 0.2, then 0.2 to 0.4, … up to the cap
backoff.reset()                                 # after a success
"""

import random
from collections.abc import Callable

FIRST_SECONDS = 0.2
CAP_SECONDS = 30.0


class Backoff:
    """Doubles up to a cap; the second half of each wait is chance. What the platform asks for is waited at least."""

    def __init__(
        self,
        *,
        first_seconds: float = FIRST_SECONDS,
        cap_seconds: float = CAP_SECONDS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._first = first_seconds
        self._cap = cap_seconds
        self._chance = chance
        self.failures = 0

    def next_seconds(self, at_least: float = 0.0) -> float:
        """Count a failure and return the wait."""
        # The exponent is bounded before it is used: a worker may fail for weeks.
        longest = min(self._cap, self._first * 2 ** min(self.failures, 30))
        self.failures += 1
        return max(longest * (0.5 + self._chance() / 2), min(at_least, 2 * self._cap))

    def reset(self) -> None:
        """It works again."""
        self.failures = 0
