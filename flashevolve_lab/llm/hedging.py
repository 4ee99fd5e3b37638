"""When a call is late: the recent durations of a role's calls, and how long one may take before a second is worth sending.

Owns the durations and the bounds of hedging; sends nothing (`llm.gateway` does). One rule a change must keep: a call that was
given up while it was late counts as one that took longer, or each hedge would lower the threshold of the next.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

OBSERVED_MIN = 20  # durations before anything is late
OBSERVED_MAX = 200  # the window: older ones say little about the server's load now
LEAST_MEDIANS = 2.0  # a second call takes about a median itself: it cannot win against one that is late by less
MOST_MEDIANS = 10.0  # where calls hang, the quantile itself can be a hang
SHARE = 0.05  # of a server's limit may be second calls, and at least one


class Durations:
    """The last durations of a role's calls, seconds in service. A new one costs O(window), a threshold O(1)."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, seconds: float) -> None:
        """A call was answered after this time, or given up after it although it was late already."""
        if len(self._recent) == OBSERVED_MAX:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(seconds)
        insort(self._ordered, seconds)

    def threshold_s(self, quantile: float) -> float | None:
        """Seconds after which a call is late: this quantile, within 2 to 10 medians; None with fewer than 20 durations."""
        count = len(self._ordered)
        if count < OBSERVED_MIN:
            return None
        median = self._ordered[count // 2]
        return min(max(self._ordered[int(quantile * count)], LEAST_MEDIANS * median), MOST_MEDIANS * median)
