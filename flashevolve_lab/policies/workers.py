"""How many worker slots a stage should have, and how many calls a server should be given.

Pure judgements on a `Load`, each wish with a reason in words. A policy of your own is a frozen dataclass with ``every_s`` and one
method, ``judge(load) -> Sequence[Change]``; it works from a notebook cell at once. A rule needs no memory: a `Change` says in
how many reviews in a row it must be wanted, and whoever asks keeps count. Slots set by hand are never touched; lowering ends no job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from flashevolve_lab.core import Change, Load, ServerLoad, StageLoad
from flashevolve_lab.errors import SetupError

FULL = 0.9  # share of its places in use from which something counts as full


@dataclass(frozen=True, slots=True)
class Fixed:
    """As set by hand, or as many as the schedule's depth. Nothing is ever reviewed."""

    every_s: ClassVar[float | None] = None

    def judge(self, load: Load) -> Sequence[Change]:
        """No change."""
        return ()


@dataclass(frozen=True, slots=True)
class RateBalanced:
    """The paper's rule (arXiv 2605.08520): a stage that produces too little gets a worker, one that produces too much loses one.

    Production is jobs finished a minute. Below ``low`` × the median of the stages → one slot more, above ``high`` × the median → one
    fewer. A stage in which nothing was done or waited is left out.

    Args:
        low, high: Multiples of the median rate, 0 < low < 1 < high.
        least, most: Bounds of every stage's slots, 1 ≤ least ≤ most.
        every_s: Lab seconds between reviews, at least.
    """

    low: float = 0.5
    high: float = 2.0
    least: int = 1
    most: int = 64
    every_s: float = 5.0

    def __post_init__(self) -> None:
        _check_bounds("RateBalanced", self.least, self.most, self.every_s)
        if not (_is_number(self.low) and _is_number(self.high) and 0 < self.low < 1 < self.high):
            raise SetupError(f"RateBalanced: expected 0 < low < 1 < high; got low={self.low!r}, high={self.high!r}")

    def judge(self, load: Load) -> Sequence[Change]:
        """One slot more or fewer for each stage that is out of balance."""
        working = [stage for stage in load.stages if stage.rate > 0 or stage.busy > 0 or stage.waiting > 0]
        if not working:
            return ()
        middle = median(stage.rate for stage in working)
        changes = []
        for stage in working:
            made = f"{stage.rate:.3g} jobs a minute"
            if stage.rate < self.low * middle and stage.slots < self.most:
                why = f"{made} are below {self.low:g} × the stages' median of {middle:.3g}"
                changes.append(Change(stage.stage, stage.slots + 1, why))
            elif stage.rate > self.high * middle and stage.slots > self.least:
                why = f"{made} are above {self.high:g} × the stages' median of {middle:.3g}"
                changes.append(Change(stage.stage, stage.slots - 1, why))
        return changes


@dataclass(frozen=True, slots=True)
class ServerAware:
    """Slots by what the server has room for, and calls by what the server says of itself.

    The aim is accepted proposals per minute and per token, so more work is started only where it can be done at once:

    - the server has room, and a stage with all its slots busy has items waiting → one slot more there;
    - the server is full (its calls, its KV cache, a queue of its own, 429s, or answers ``slow`` times as slow as the best), and
      more calls wait for it than it takes at once → one fewer in the first stage: what starts later starts from a newer front;
    - more than ``waste`` of the proposals that end are discarded as stale → likewise: their tokens bought nothing;
    - a stage whose successor has more waiting than it has slots → one fewer: it only makes a queue longer;
    - requests wait inside the server, or its KV cache is full → fewer calls in flight, so that they wait here, by priority;
    - the server has room again and calls wait → more calls, up to what a person set.

    Args:
        least, most: Bounds of every stage's slots, 1 ≤ least ≤ most; ``least`` also of the calls in flight.
        waste: Share of ended proposals that may be discarded as stale, in (0, 1].
        slow: Multiple of the lowest mean latency from which a server counts as full, > 1.
        patience: Reviews in a row that must want a change, ≥ 1. pause: Reviews left out after each.
        every_s: Lab seconds between reviews, at least.
    """

    least: int = 1
    most: int = 128
    waste: float = 0.25
    slow: float = 3.0
    patience: int = 3
    pause: int = 2
    every_s: float = 5.0

    def __post_init__(self) -> None:
        _check_bounds("ServerAware", self.least, self.most, self.every_s)
        for name, least in (("patience", 1), ("pause", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SetupError(f"ServerAware({name}=…): expected an integer of at least {least}; got {value!r}")
        if not _is_number(self.waste) or not 0 < self.waste <= 1:
            raise SetupError(f"ServerAware(waste=…): expected a share in (0, 1]; got {self.waste!r}")
        if not _is_number(self.slow) or not self.slow > 1:
            raise SetupError(f"ServerAware(slow=…): expected a number above 1; got {self.slow!r}")

    def judge(self, load: Load) -> Sequence[Change]:
        """At most one slot more or fewer for each stage, and a tenth of the calls."""
        full = self._full(load.server)
        wishes = [wish for i in range(len(load.stages)) if (wish := self._slots(load, i, full))]
        calls = self._calls(load.server)
        return [*wishes, *([calls] if calls else [])]

    def _full(self, server: ServerLoad) -> str:
        """Why the server counts as full, or ""."""
        if server.refused or server.lowered:
            return "it refuses or misses calls, and is given fewer for now"
        if server.kv_cache is not None and server.kv_cache >= 0.95:
            return f"{server.kv_cache:.0%} of its KV cache are in use"
        if server.waiting is not None and server.running is not None and server.waiting > 0.1 * server.running + 1:
            return f"{server.waiting:.0f} requests wait inside it"
        if server.lately >= 0.97:
            return f"{server.lately:.0%} of its calls are in flight"
        if server.slowdown >= self.slow:
            return f"its answers take {server.slowdown:.1f} times as long as at best"
        return ""

    def _slots(self, load: Load, i: int, full: str) -> Change | None:
        stage, server = load.stages[i], load.server
        if less := self._too_many(load, i, full):
            return self._change(stage, -1, less) if stage.slots > self.least else None
        crowded = stage.busy >= FULL * stage.slots and stage.waiting >= 0.5
        if crowded and stage.slots < self.most and not full and server.lately < FULL:
            waiting = f"{stage.waiting:.1f} items wait for its {stage.slots} slots"
            return self._change(stage, +1, f"{waiting}, and the server has room ({server.lately:.0%} in use)")
        return None

    def _too_many(self, load: Load, i: int, full: str) -> str:
        """Why a stage should do less, or ""."""
        server, behind = load.server, load.stages[i + 1] if i + 1 < len(load.stages) else None
        if i == 0 and full and server.backlog > server.calls:
            return f"the server is full ({full}) and {server.backlog} calls wait for it"
        if i == 0 and load.discarded > self.waste * max(load.proposals, load.discarded, 4):
            return f"{load.discarded} proposals were discarded as stale, {load.accepted} accepted"
        if behind is not None and behind.waiting > behind.slots:
            return f"{behind.waiting:.1f} items wait for {behind.stage} already"
        return ""

    def _change(self, stage: StageLoad, by: int, why: str) -> Change:
        return Change(stage.stage, stage.slots + by, why, self.patience, self.pause)

    def _calls(self, server: ServerLoad) -> Change | None:
        if server.waiting is None or server.running is None or server.lowered:
            return None  # it says nothing, or the gateway is lowering it already
        step, cache = max(1, server.calls // 10), server.kv_cache or 0.0
        crowded = server.waiting > 0.1 * server.running + 1 or (cache >= 0.95 and server.waiting >= 1)
        if crowded and server.calls - step >= self.least:
            why = f"{server.waiting:.0f} requests wait inside the server beside {server.running:.0f} in service"
            return Change("concurrency", server.calls - step, why, self.patience, self.pause)
        if server.waiting < 1 and cache < 0.85 and server.calls < server.ceiling and server.busy >= FULL:
            why = f"nothing waits inside the server, and {server.busy:.0%} of the calls it is given are in flight"
            return Change("concurrency", min(server.ceiling, server.calls + step), why, self.patience, self.pause)
        return None


def _check_bounds(policy: str, least: object, most: object, every_s: object) -> None:
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in (least, most))
    if not whole or not 1 <= least <= most:  # type: ignore[operator]
        raise SetupError(f"{policy}: expected whole numbers 1 ≤ least ≤ most; got least={least!r}, most={most!r}")
    if not _is_number(every_s) or not every_s > 0:  # type: ignore[operator]
        raise SetupError(f"{policy}(every_s=…): expected a number of seconds above 0; got {every_s!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


WORKERS = {"Fixed": Fixed, "RateBalanced": RateBalanced, "ServerAware": ServerAware}
