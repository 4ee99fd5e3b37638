"""One server as the gateway sees it: its slots, a limit that follows what the server can take, and the pauses it asks for.

Pure bookkeeping on times it is given. One rule a change must keep: a burst of refusals of calls that were sent together counts
once, and what was lowered rises again by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

CUT = 0.7  # what is left of the limit after a refusal
GAIN = 2.0  # how much the limit regains over one limit's worth of answers
Change = Callable[[str, int, int, str], None]


@dataclass(slots=True)
class Endpoint:
    """A server's slots.

    Attributes:
        name: Its public address, or what it is.
        ceiling: The configured limit of calls in flight, ≥ 1.
        changed: Told (name, old limit, new limit, why) whenever the effective limit moves, or a pause begins.
        in_flight: Calls it holds now.
        hedges: Those of them that are second calls for late ones.
        blocked_until: No further call before this time (seconds of the loop's clock).
    """

    name: str
    ceiling: int
    changed: Change
    in_flight: int = 0
    hedges: int = 0
    blocked_until: float = 0.0
    _limit: float = field(default=0.0)
    _cut_at: float = field(default=-1.0)

    def __post_init__(self) -> None:
        self._limit = float(self.ceiling)

    @property
    def limit(self) -> int:
        """Calls in flight it is given now, from 1 to ``ceiling``."""
        return int(self._limit)

    def free(self, now: float) -> bool:
        """Whether a further call may be sent."""
        return self.in_flight < self.limit and now >= self.blocked_until

    def resize(self, ceiling: int) -> None:
        """Another configured limit; the effective one starts there."""
        self.ceiling = ceiling
        self._move(float(ceiling), f"the setting is {ceiling} now")

    def answered(self) -> None:
        """A call was answered: the limit regains a little."""
        if self._limit < self.ceiling:
            self._move(min(float(self.ceiling), self._limit + GAIN / self._limit), "answers come again")

    def overloaded(self, sent_at: float, now: float, wait_s: float, why: str) -> None:
        """A call sent at ``sent_at`` was refused or not answered in time: wait, and send less.

        A pause is told even where the limit stays: one that begins, or that becomes a second longer than was known.
        """
        until = now + wait_s
        longer = until > max(now, self.blocked_until) + (1.0 if self.blocked_until > now else 0.0)
        self.blocked_until = max(self.blocked_until, until)
        limit = self._limit
        if sent_at > self._cut_at:
            self._cut_at = now
            limit = max(1.0, self._limit * CUT)
        self._move(limit, why, also=longer)

    def _move(self, limit: float, why: str, *, also: bool = False) -> None:
        old, self._limit = self.limit, limit
        if self.limit != old or also:
            self.changed(self.name, old, self.limit, why)
