"""What is measured between two reviews, and what the reviews so far wanted: sums that `apply` keeps up at a few operations an event.

Owns `Meters` and `Lean`. Owns no judgement (policies) and no review (`core.reviewing`). One rule a change must keep: a meter is
moved by `apply` alone, at the time of an entry, so that a log folded anywhere has the same averages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flashevolve_lab.core import events as ev
from flashevolve_lab.core.artifacts import Brought
from flashevolve_lab.core.events import Event

if TYPE_CHECKING:
    from flashevolve_lab.core.state import RunState

LATELY = 4  # reviews that the lately-average looks back on
KEPT = 15 / 16  # weight of what a setting brought, one review later: a run goes through seasons, so old reviews say less


@dataclass(frozen=True, slots=True)
class Lean:
    """What the reviews wanted of one thing (a stage's slots, the depth, the concurrency).

    Attributes:
        sign: +1 more, -1 less, 0 neither, at the last review; ``count``: reviews in a row that said so, since the last change.
        since: Reviews since it was last changed.
        way: Sign of that change. turns: Changes against the one before; each doubles the patience the next one needs.
    """

    sign: int = 0
    count: int = 0
    since: int = 1_000
    way: int = 0
    turns: int = 0

    def wished(self, sign: int) -> Lean:
        """After a further review."""
        same = sign != 0 and sign == self.sign
        return Lean(sign, self.count + 1 if same else abs(sign), self.since + 1, self.way, self.turns)

    def changed(self, way: int) -> Lean:
        """After a change."""
        against = self.way != 0 and way != self.way
        return Lean(0, 0, 0, way, self.turns + 1 if against else max(0, self.turns - 1))


@dataclass(slots=True)
class Meters:
    """Everything measured since the last review."""

    since: float = 0.0  # when the window began: the last review, or what made a new beginning (a pause, a resume, a changed knob)
    levels: dict[tuple[str, str], int] = field(default_factory=dict)  # ("calls", role), ("busy" or "waiting", stage), …: now
    areas: dict[tuple[str, str], float] = field(default_factory=dict)  # the same: level × seconds, up to `seen`
    seen: dict[tuple[str, str], float] = field(default_factory=dict)  # the same: when it last moved
    finished: Counter[str] = field(default_factory=Counter)  # stage → jobs finished
    answered: Counter[str] = field(default_factory=Counter)  # role → calls answered
    latency: dict[str, float] = field(default_factory=dict)  # role → their seconds, summed
    fastest: dict[str, float] = field(default_factory=dict)  # role → lowest mean seconds of any window
    plain: set[str] = field(default_factory=set)  # running jobs that score nothing: each has about one call to make
    ended: int = 0  # proposals ended
    before: Mapping[str, int] = field(default_factory=dict)  # tokens, proposals, accepted, discarded, …: as the window began
    lately: float = 0.0  # share of the server in use, over the last reviews at the depth in force
    reviews: int = 0  # how many that are; -1: the next one still sees the depth before
    leans: dict[str, Lean] = field(default_factory=dict)  # stage, "depth" or "concurrency" → what the reviews wanted of it
    serving: dict[str, tuple[str, int]] = field(default_factory=dict)  # job → its stage and its calls in flight, where there are any
    now: Brought | None = None  # what the first stage's slots brought since a controller changed them
    past: Brought | None = None  # likewise, the number before
    turning: bool = False  # the next review still sees the work of the number before

    def hold(self, what: str, of: str, level: int, at: float) -> None:
        """From now on this level."""
        key = (what, of)
        before = self.levels.get(key, 0)
        if before == level:
            return
        if before:
            self.areas[key] = self.areas.get(key, 0.0) + before * (at - max(self.since, self.seen[key]))
        self.levels[key], self.seen[key] = level, at

    def move(self, what: str, of: str, by: int, at: float) -> None:
        """From now on so much more."""
        self.hold(what, of, self.levels.get((what, of), 0) + by, at)

    def call(self, role: str, job: str, stage: str, by: int, at: float) -> None:
        """A call more or fewer in flight; the stage is asked for only at a job's first."""
        self.move("calls", role, by, at)
        stage, calls = self.serving.get(job, (stage, 0))
        if calls + by > 0:
            self.serving[job] = (stage, calls + by)
        else:
            del self.serving[job]
        if 0 in (calls, calls + by):
            self.move("served", stage, by, at)

    def mean(self, what: str, of: str, at: float) -> float:
        """The time average of a level since the window began."""
        key = (what, of)
        level = self.levels.get(key, 0)
        open_area = level * (at - max(self.since, self.seen[key])) if level else 0.0
        return (self.areas.get(key, 0.0) + open_area) / max(at - self.since, 1e-9)

    def answer(self, role: str, seconds: float) -> None:
        """A call was answered after so long."""
        self.answered[role] += 1
        self.latency[role] = self.latency.get(role, 0.0) + seconds

    def slowdown(self) -> float:
        """Mean latency as a multiple of the lowest mean of any window, the role with most answers; 1 where nothing is known."""
        role = max(self.answered, key=lambda role: self.answered[role], default="")
        if role not in self.fastest:
            return 1.0
        return max(1.0, self.latency[role] / self.answered[role] / max(self.fastest[role], 1e-9))

    def restart(self, at: float, before: Mapping[str, int]) -> None:
        """A new window begins."""
        for role, count in self.answered.items():
            mean = self.latency[role] / count
            if count >= LEAST_ANSWERS:
                self.fastest[role] = min(self.fastest.get(role, mean), mean)
        self.since, self.before, self.ended = at, before, 0
        for sums in (self.areas, self.finished, self.answered, self.latency):
            sums.clear()

    def reviewed(self, busy: float, wishes: Mapping[str, int]) -> None:
        """What a review saw and wanted."""
        self.lately = self.blended(busy) if self.reviews >= 0 else 0.0
        self.reviews += 1
        for what in {*self.leans, *wishes}:
            self.leans[what] = self.leans.get(what, Lean()).wished(wishes.get(what, 0))

    def blended(self, busy: float) -> float:
        """The share in use over the last reviews at this depth, with this one; right after a change there is only this one."""
        return self.lately + (busy - self.lately) / min(max(self.reviews, 0) + 1, LATELY)

    def changed(self, what: str, old: int, new: int) -> None:
        """A controller changed something."""
        self.leans[what] = self.leans.get(what, Lean()).changed(1 if new > old else -1)
        if what == "depth":
            self.reviews, self.lately = -1, 0.0

    def brought(self, seconds: float, accepted: int, calls: int, tokens: int) -> None:
        """What a window brought, to the first stage's slots in force; right after a change it is still the work of those before."""
        if self.turning:
            self.turning = False
            return
        now = self.now or Brought()
        sums = (KEPT * now.seconds + seconds, KEPT * now.accepted + accepted, KEPT * now.calls + calls, KEPT * now.tokens + tokens)
        self.now = Brought(now.slots, now.reviews + 1, *sums)

    def turned(self, old: int, new: int) -> None:
        """A controller changed the first stage's slots; back at the number before, its sums go on."""
        left = replace(self.now or Brought(), slots=old)
        self.now = self.past if self.past is not None and self.past.slots == new else Brought(new)
        self.past, self.turning = left, True

    def unlike(self) -> None:
        """Something else changed, so that what comes after cannot be compared with what was."""
        self.now = self.past = None
        self.turning = True

    def forget(self) -> None:
        """Another policy: what was wanted before says nothing."""
        self.leans.clear()
        self.reviews, self.lately = 0, 0.0
        self.unlike()


LEAST_ANSWERS = 20  # a mean over fewer calls says little of how fast a server can be


# --- what each event moves, the state being as it is after it -------------------------------------------------------------


def begin_window(s: RunState, at: float) -> None:
    """What is measured from here on is for the next review."""
    spent, counts = s.spent, s.counts
    outcomes = {"accepted": counts["committed"], "discarded": counts["discarded"], "refused": counts["call rate_limited"]}
    s.meters.restart(at, {"tokens": spent.tokens, "calls": spent.llm_calls, "proposals": spent.proposals, **outcomes})


def _places(s: RunState, e: Any, at: float) -> None:
    """Items waiting, slots busy and proposals in flight."""
    meters = s.meters
    for stage, queue in s.queues.items():
        meters.hold("waiting", stage, len(queue), at)
        busy, before = len(s.slots[stage]), meters.levels.get(("busy", stage), 0)
        if busy != before:
            meters.finished[stage] += type(e) is ev.JobFinished
            meters.hold("busy", stage, busy, at)
    in_flight, before = s.in_flight, meters.levels.get(("proposals", ""), 0)
    if in_flight != before:
        meters.ended += max(0, before - in_flight)
        meters.hold("proposals", "", in_flight, at)


def _job_begun(s: RunState, e: ev.JobStarted, at: float) -> None:
    if not e.reserved.metric_calls:
        s.meters.plain.add(e.job)
    _places(s, e, at)


def _job_ended(s: RunState, e: ev.JobFinished | ev.JobFailed | ev.JobAbandoned | ev.JobLost, at: float) -> None:
    s.meters.plain.discard(e.job)
    _places(s, e, at)


def _anew(s: RunState, e: Any, at: float) -> None:
    begin_window(s, at)


def _item_ended(s: RunState, e: ev.ItemEnded, at: float) -> None:
    _places(s, e, at)
    if e.outcome == "committed" and s.pool.version == 0:  # how the seed was scored says nothing about what comes after
        begin_window(s, at)


def _setting_changed(s: RunState, e: ev.SettingChanged, at: float) -> None:
    s.meters.unlike()
    if e.knob in ("workers", "schedule"):
        s.meters.forget()
        begin_window(s, at)
    elif e.knob == "concurrency" and e.by in BY_HAND:
        s.ceiling = e.new
        begin_window(s, at)
    elif e.knob == "concurrency":
        s.meters.changed("concurrency", e.old, e.new)


def _slots_changed(s: RunState, e: ev.SlotsChanged, at: float) -> None:
    s.meters.changed(e.stage, e.old, e.new)
    if e.stage == next(iter(s.queues)):  # the stage that the work begins with
        s.meters.turned(e.old, e.new)


def _depth_changed(s: RunState, e: ev.DepthChanged, at: float) -> None:
    s.meters.unlike()
    if e.by:
        s.meters.changed("depth", e.old, e.new)


def _reviewed(s: RunState, e: ev.WorkersReviewed, at: float) -> None:
    s.meters.reviewed(e.busy, e.wishes)
    s.meters.brought(e.seconds, e.accepted, s.spent.llm_calls - s.meters.before.get("calls", 0), e.tokens)
    begin_window(s, at)


BY_HAND = ("user", "engine")
MEASURES: Mapping[type[Event], Callable[[RunState, Any, float], None]] = {
    **dict.fromkeys((ev.ItemMade, ev.ItemQueued), _places),
    ev.JobStarted: _job_begun,
    **dict.fromkeys((ev.JobFinished, ev.JobFailed, ev.JobAbandoned, ev.JobLost), _job_ended),
    **dict.fromkeys((ev.Continued, ev.RunResumed), _anew),
    ev.ItemEnded: _item_ended,
    ev.SettingChanged: _setting_changed,
    ev.SlotsChanged: _slots_changed,
    ev.DepthChanged: _depth_changed,
    ev.WorkersReviewed: _reviewed,
}
