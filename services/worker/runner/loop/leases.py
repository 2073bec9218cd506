"""Leases as their holder sees them: by its own monotonic clock, and a little shorter than they are.

A runner stops trusting a lease before the service may give it to another, so that a runner that was paused, or cut off
from the service, stops by itself. The service refuses its late writes in any case.
"""

import time
from dataclasses import dataclass


class LeaseLost(Exception):
    """The turn belongs to another by now, or to nobody: nothing may be written any more."""


@dataclass(slots=True)
class Lease:
    """The right to run one turn, until `deadline`."""

    session_id: str
    epoch: int
    deadline: float = 0.0

    def extend(self, from_moment: float, lease_seconds: float) -> None:
        """Count a grant or renewal from a moment at which the service had not yet counted it."""
        self.deadline = max(self.deadline, from_moment + lease_seconds - margin_seconds(lease_seconds))

    def remaining_seconds(self) -> float:
        """Seconds for which the turn may still be written."""
        return self.deadline - time.monotonic()

    def check(self) -> None:
        """Raise LeaseLost where the lease can't be trusted any more."""
        if time.monotonic() >= self.deadline:
            raise LeaseLost(f"the lease of {self.session_id} at epoch {self.epoch} ran out")


def margin_seconds(lease_seconds: float) -> float:
    """How much earlier than the service the holder takes a lease for over."""
    return min(1.0, lease_seconds * 0.15)
