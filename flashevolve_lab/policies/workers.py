"""How many worker slots a stage should have, and how many calls a server should be given.

Pure judgements on a `Load`, each wish with a reason in words. A policy of your own is a frozen dataclass with ``every_s`` and one
method, ``judge(load) -> Sequence[Change]``; it works from a notebook cell at once. A rule needs no memory: a `Change` says in
how many reviews in a row it must be wanted, and whoever asks keeps count. Slots set by hand are never touched; lowering ends no job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log, sqrt
from statistics import median
from typing import ClassVar

from flashevolve_lab.core import Brought, Change, Load, ServerLoad, StageLoad
from flashevolve_lab.errors import SetupError

FULL = 0.9  # share of its places in use from which something counts as full
SPARE = 0.5  # jobs of the first stage in reserve for the server, as a share of all that it serves: bursts would leave it idle
TRIAL = 20  # reviews within which a change is taken back: later, a run's own progress is the likelier cause
FEW = 20  # accepted proposals, at either number of slots, without which nothing is compared
SURE = 2.5  # standard deviations that are more than chance, asked at every review of a trial


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

    The aim is accepted proposals per minute and per token. The slots of the first stage decide how many proposals are in flight:

    - the server is full (its calls, its KV cache, a queue of its own, 429s, or answers ``slow`` times as slow as the best), and
      more of the first stage's jobs only wait for it than it needs in reserve → as many slots there as are served, and the
      reserve: what starts later starts from a newer front;
    - more than ``waste`` of the proposals that end are discarded as stale → an eighth fewer: their tokens bought nothing;
    - the server has room and items wait for its slots → more, at most half as many again (rounded up).

    Each such change is a trial: where the accepted per minute and per call are lower by more than chance than at the number before,
    that number comes back, and is kept as long as the record stands. In the other stages, slots that the server could not serve
    are taken away and a stage with all its slots busy gets more: work nearest to a commit goes first anyway. A stage whose successor
    has more waiting than it has slots gets one fewer. Where requests wait inside the server, the calls in flight are lowered to
    what it serves, so that they wait here, by priority; once it has room, they rise again up to what a person set.

    Tokens are compared as calls, because a better front has longer texts, so that progress itself would look dear.

    Measured on the simulator (independent rules, 16 slots, depth 48, 200 lab seconds, 10 seeds, 95% intervals), against `Fixed`:
    with `Guarded(8)` 37.9 ± 0.8 accepted a minute against 25.6 ± 0.4, for 6,470 ± 220 tokens each against 8,140 ± 230. With
    `Full` it wins neither: 45.7 ± 1.1 against 45.8 ± 0.7 a minute, as many calls for each (65) and 12% more tokens, its texts being
    longer: the best score is 0.178 ± 0.014 against 0.106 ± 0.007. With room to spare, or at a depth that fits, it changes next to nothing.

    Args:
        least, most: Bounds of every stage's slots, 1 ≤ least ≤ most; ``least`` also of the calls in flight.
        price: Percent of the accepted per minute that one gives up for one percent more accepted per call, ≥ 0. 0: only time counts.
        waste: Share of ended proposals that may be discarded as stale, in (0, 1].
        slow: Multiple of the lowest mean latency from which a server counts as full, > 1.
        patience: Reviews in a row that must want a change, ≥ 1. pause: Reviews left out after each.
        every_s: Lab seconds between reviews, at least.
    """

    least: int = 1
    most: int = 128
    price: float = 0.5
    waste: float = 0.25
    slow: float = 3.0
    patience: int = 2
    pause: int = 2
    every_s: float = 5.0

    def __post_init__(self) -> None:
        _check_bounds("ServerAware", self.least, self.most, self.every_s)
        for name, least in (("patience", 1), ("pause", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SetupError(f"ServerAware({name}=…): expected an integer of at least {least}; got {value!r}")
        if not _is_number(self.price) or not 0 <= self.price < inf:
            raise SetupError(f"ServerAware(price=…): expected a number of at least 0; got {self.price!r}")
        if not _is_number(self.waste) or not 0 < self.waste <= 1:
            raise SetupError(f"ServerAware(waste=…): expected a share in (0, 1]; got {self.waste!r}")
        if not _is_number(self.slow) or not self.slow > 1:
            raise SetupError(f"ServerAware(slow=…): expected a number above 1; got {self.slow!r}")

    def judge(self, load: Load) -> Sequence[Change]:
        """At most one change of each stage's slots and of the calls."""
        full = self._full(load.server)
        first = self._tried(load, self._first(load, full)) if load.stages else None
        later = [self._later(load, i, full) for i in range(1, len(load.stages))]
        return [change for change in (first, *later, self._calls(load.server)) if change]

    def _full(self, server: ServerLoad) -> str:
        """Why the server counts as full, or ""."""
        if _refusing(server):
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

    # --- the first stage: how many proposals are in flight

    def _first(self, load: Load, full: str) -> Change | None:
        stage, lately = load.stages[0], load.server.lately
        working = min(stage.busy, stage.slots)
        reserve = max(1.0, SPARE * sum(each.served for each in load.stages))
        if full and working - stage.served > 2 * reserve:
            to = max(ceil(stage.served + reserve), stage.slots // 4)
            why = f"the server is full ({full}): {stage.served:.1f} jobs are served and {working - stage.served:.1f} only wait for it"
            return self._change(stage, to, why)
        if load.discarded > self.waste * max(load.proposals, load.discarded, 4):
            to = min(stage.slots - 1, ceil(0.875 * working))
            return self._change(stage, to, f"{load.discarded} proposals were discarded as stale, {load.accepted} accepted")
        if too_many := self._too_many(load, 0):
            return self._change(stage, stage.slots - 1, too_many)
        if _crowded(stage) and not full and lately < FULL:
            to = max(stage.slots + 1, ceil(stage.slots * min(1.5, FULL / max(lately, 0.1))))
            why = f"{stage.waiting:.1f} items wait for its {stage.slots} slots, and the server has room ({lately:.0%} in use)"
            return self._change(stage, to, why)
        return None

    def _tried(self, load: Load, wish: Change | None) -> Change | None:
        """The wish, unless the record of the last change says otherwise."""
        stage, now, before = load.stages[0], load.now, load.before
        if now is None or before is None or now.slots != stage.slots or before.slots == now.slots:
            return wish
        gain, more = self._gain(now, before), before.slots > stage.slots
        if gain < 0 and now.reviews <= TRIAL and not (more and _refusing(load.server)):
            had, had_calls = f"{before.per_minute:.3g} accepted a minute", f"{before.calls / before.accepted:.3g} calls for each"
            why = f"with {before.slots} slots there were {had} and {had_calls}; now {now.per_minute:.3g} and "
            why += f"{now.calls / max(now.accepted, 1):.3g}: more than chance"
            return self._change(stage, before.slots, why)
        if wish and gain > 0 and (wish.to > stage.slots) == more:
            return None
        return wish

    def _gain(self, now: Brought, before: Brought) -> float:
        """Natural logarithm of how much more is brought now, per minute and (times the price) per call; 0 where it may be chance.

        The accepted are taken as counts of a Poisson process, so that the variance of their logarithm is one in so many.
        """
        if min(now.accepted, before.accepted) < 1 or max(now.accepted, before.accepted) < FEW or now.reviews < 1:
            return 0.0
        more, longer = log(now.accepted / before.accepted), log(now.seconds / before.seconds)
        price = self.price if now.calls and before.calls else 0.0  # where nothing is called, only time can count
        dearer = log(now.calls / before.calls) if price else 0.0
        gain = more - longer + price * (more - dearer)
        chance = (1 + price) * sqrt(1 / now.accepted + 1 / before.accepted)
        return gain if abs(gain) > SURE * chance else 0.0

    # --- the other stages, and the calls

    def _later(self, load: Load, i: int, full: str) -> Change | None:
        stage, server = load.stages[i], load.server
        used = stage.busy + stage.waiting
        if too_many := self._too_many(load, i):
            return self._change(stage, stage.slots - 1, too_many)
        if full and stage.rate > 0 and stage.slots > 4 * used + 2:
            return self._change(stage, ceil(2 * used) + 1, f"the server is full ({full}), and {stage.busy:.1f} are in use")
        if _crowded(stage) and not _refusing(server):
            to = ceil(min(1.5 * stage.slots, stage.slots + stage.waiting))
            return self._change(stage, to, f"{stage.waiting:.1f} items wait for its {stage.slots} slots")
        return None

    def _too_many(self, load: Load, i: int) -> str:
        """Why a stage only makes the next one's queue longer, or ""."""
        behind = load.stages[i + 1] if i + 1 < len(load.stages) else None
        if behind is None or behind.waiting <= behind.slots:
            return ""
        return f"{behind.waiting:.1f} items wait for {behind.stage} already"

    def _change(self, stage: StageLoad, to: int, why: str) -> Change | None:
        """The change within the bounds, if any is left; slots outside of them come nearer but are not moved away."""
        to = max(to, min(self.least, stage.slots)) if to < stage.slots else min(to, max(self.most, stage.slots))
        return Change(stage.stage, to, why, self.patience, self.pause) if to != stage.slots else None

    def _calls(self, server: ServerLoad) -> Change | None:
        if server.waiting is None or server.running is None or server.lowered:
            return None  # it says nothing, or the gateway is lowering it already
        step, cache, served = max(1, server.calls // 10), server.kv_cache or 0.0, ceil(server.running)
        crowded = server.waiting > 0.1 * server.running + 1 or (cache >= 0.95 and server.waiting >= 1)
        if crowded and server.calls - step >= self.least:
            to = max(self.least, min(server.calls - step, max(server.calls // 2, served + max(1, served // 10))))
            why = f"{server.waiting:.0f} requests wait inside the server beside {server.running:.0f} in service"
            return Change("concurrency", to, why, self.patience, self.pause)
        if server.waiting < 1 and cache < 0.85 and server.calls < server.ceiling and server.busy >= FULL:
            why = f"nothing waits inside the server, and {server.busy:.0%} of the calls it is given are in flight"
            return Change("concurrency", min(server.ceiling, server.calls + step), why, self.patience, self.pause)
        return None


def _crowded(stage: StageLoad) -> bool:
    return stage.busy >= FULL * stage.slots and stage.waiting >= 0.5


def _refusing(server: ServerLoad) -> bool:
    return server.refused > 0 or server.lowered


def _check_bounds(policy: str, least: object, most: object, every_s: object) -> None:
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in (least, most))
    if not whole or not 1 <= least <= most:  # type: ignore[operator]
        raise SetupError(f"{policy}: expected whole numbers 1 ≤ least ≤ most; got least={least!r}, most={most!r}")
    if not _is_number(every_s) or not every_s > 0:  # type: ignore[operator]
        raise SetupError(f"{policy}(every_s=…): expected a number of seconds above 0; got {every_s!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


WORKERS = {"Fixed": Fixed, "RateBalanced": RateBalanced, "ServerAware": ServerAware}
