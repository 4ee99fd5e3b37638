"""One line in words on how a run is doing: what limits it now, what starves, and where its staleness comes from.

Owns `Diagnosis` and the loads it is based on. "Now" is the last `WINDOW` changes of queues and worker slots, averaged over
time. One rule a change must keep: every number in the sentence is in the snapshot too, so that the sentence can be checked.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashevolve_lab.core import Entry, Event, RunState
from flashevolve_lab.core import events as ev
from flashevolve_lab.views.facts import worded
from flashevolve_lab.views.folding import Folding

WINDOW = 240  # changes of queues and slots that "now" is averaged over
FULL = 0.9  # share of its places in use from which something counts as full
IDLE = 0.25  # share of its slots in use below which a stage that nothing waits for starves


@dataclass(frozen=True, slots=True)
class Load:
    """A stage: ``slots`` it has, how many of them are ``busy`` and items ``waiting``, on average lately and at this moment."""

    stage: str
    slots: int
    busy: float
    waiting: float
    busy_now: int
    waiting_now: int

    @property
    def share(self) -> float:
        """Slots busy lately, in [0, 1]."""
        return min(1.0, self.busy / self.slots) if self.slots else 0.0


@dataclass(frozen=True, slots=True)
class DiagnosisSnapshot:
    """The line and what it is based on.

    Attributes:
        line: One sentence in words. ``limit``, ``starving``, ``staleness``: its parts ("" where there is nothing to say).
        loads: A load for each stage, in the order of the work.
        depth: Proposals that may be in flight now; ``in_flight``: that were, lately; ``calls`` and ``concurrency`` likewise.
        server: What the server with the longest queue of its own told last, where one tells.
        origins: (stage, "waiting" or "working") → versions that passed while a proposal was there, most first.
    """

    seq: int = 0
    at: float = 0.0
    line: str = "Nothing has happened yet."
    limit: str = ""
    starving: str = ""
    staleness: str = ""
    loads: tuple[Load, ...] = ()
    depth: int = 0
    in_flight: float = 0.0
    calls: float = 0.0
    concurrency: int = 0
    origins: Mapping[tuple[str, str], int] = field(default_factory=dict)
    server: ev.ServerSeen | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    busy: tuple[int, ...]
    waiting: tuple[int, ...]
    in_flight: int
    calls: int


class Diagnosis:
    """A live view: feed it the log in any pieces, ask for the snapshot at any time."""

    def __init__(self) -> None:
        self._folding = Folding()
        self._samples: deque[_Sample] = deque(maxlen=WINDOW)
        self._origins: Counter[tuple[str, str]] = Counter()
        self._worked: set[str] = set()  # stages that ever had a job: one that never had any does not starve

    def __repr__(self) -> str:
        return f"<Diagnosis at entry {self._folding.state.seq}: {self.snapshot().line}>"

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take in further entries (those seen before are skipped)."""
        for entry in self._folding.fresh(entries):
            at = self._folding.time(entry)
            if isinstance(entry.event, (ev.Committed, ev.Provisional, ev.RolledBack)):
                self._attribute(entry.event)
            elif isinstance(entry.event, ev.JobStarted):
                self._worked.add(entry.event.stage)
            self._folding.take(entry)
            if isinstance(entry.event, ev.Committed) and entry.event.version == 0:
                self._samples.clear()  # how the seed was scored says nothing about what comes after
            if _moves(entry.event):
                self._sample(at)

    def snapshot(self) -> DiagnosisSnapshot:
        """The diagnosis now."""
        state = self._folding.state
        if state.started is None:
            return DiagnosisSnapshot()
        loads, (in_flight, calls) = self._loads(state), self._averages(state)
        depth = depth_of(state)
        concurrency = min([int(state.settings.get("concurrency") or 0), *state.limits.values()])
        limit, limiting = _limit(state, loads, depth, in_flight, calls, concurrency)
        starving = _starving(state, [load for load in loads if load.stage in self._worked], limiting)
        staleness = self._staleness()
        parts = [part for part in (limit, starving, staleness) if part] if state.status == "running" else [limit]
        return DiagnosisSnapshot(
            seq=state.seq,
            at=state.at,
            line=f"{'; '.join(parts)}.",
            limit=limit,
            starving=starving,
            staleness=staleness,
            loads=loads,
            depth=depth,
            in_flight=in_flight,
            calls=calls,
            concurrency=concurrency,
            origins=dict(self._origins.most_common()),
            server=_longest_queue(state),
        )

    def _sample(self, at: float) -> None:
        state = self._folding.state
        busy = tuple(len(slots) for slots in state.slots.values())
        waiting = tuple(len(queue) for queue in state.queues.values())
        if self._samples and self._samples[-1].at == at:
            self._samples.pop()
        self._samples.append(_Sample(at, busy, waiting, state.in_flight, len(state.calls)))

    def _attribute(self, event: ev.Committed | ev.Provisional | ev.RolledBack) -> None:
        """A version passes: every other proposal in flight falls behind by one, where it is now."""
        state = self._folding.state
        working = {item for job in state.jobs.values() if not job.released for item in job.items}
        batch = -1 if isinstance(event, ev.RolledBack) else event.batch  # a roll-back belongs to none
        for item in state.items.values():
            if item.kind == "proposal" and item.id != event.item and item.batch != batch:
                self._origins[item.stage, "working" if item.id in working else "waiting"] += 1

    def _weights(self) -> list[float]:
        """How long each sample lasted, the last one until now; none before the first."""
        if not self._samples:
            return []
        ends = [sample.at for sample in self._samples][1:] + [self._folding.state.at]
        spans = [max(0.0, end - sample.at) for sample, end in zip(self._samples, ends, strict=True)]
        return spans if sum(spans) > 0 else [1.0] * len(spans)

    def _loads(self, state: RunState) -> tuple[Load, ...]:
        weights, samples = self._weights(), self._samples
        return tuple(
            Load(
                stage=stage,
                slots=slots_of(state, stage),
                busy=_mean([sample.busy[i] for sample in samples], weights),
                waiting=_mean([sample.waiting[i] for sample in samples], weights),
                busy_now=len(state.slots[stage]),
                waiting_now=len(state.queues[stage]),
            )
            for i, stage in enumerate(state.queues)
        )

    def _averages(self, state: RunState) -> tuple[float, float]:
        weights, samples = self._weights(), self._samples
        return _mean([s.in_flight for s in samples], weights), _mean([s.calls for s in samples], weights)

    def _staleness(self) -> str:
        if not self._origins:
            return ""
        (stage, how), count = self._origins.most_common(1)[0]
        share = f"{count / self._origins.total():.0%} of version gaps"
        return f"most staleness arises {'in' if how == 'working' else 'while waiting for'} {stage} ({share})"


def depth_of(state: RunState) -> int:
    """Proposals that may be in flight: the recorded schedule's, or what it found; or what is left against livelock. The one place."""
    schedule = state.settings.get("schedule") or {}
    depth = _found_depth(state, schedule) if schedule.get("depth") == "auto" else _recorded_depth(schedule)
    return depth if state.effective_depth is None else min(depth, state.effective_depth)


def _found_depth(state: RunState, schedule: Mapping[str, Any]) -> int:
    """What a schedule with depth "auto" has found, within its recorded bounds (a schedule of one's own may not record them)."""
    least, most = (schedule.get(name) for name in ("least", "most"))
    found = max(state.auto_depth or state.opening_depth or 1, least if isinstance(least, int) else 1)
    return max(1, min(found, most)) if isinstance(most, int) else found


def _recorded_depth(schedule: Mapping[str, Any]) -> int:
    """What the log says; in logs that do not say it, what the built-in schedules had, and 1 for others."""
    depth = schedule.get("depth")
    if depth is None and schedule.get("name") == "Batched":
        p, n = schedule.get("p"), schedule.get("n")
        depth = p * n if isinstance(p, int) and isinstance(n, int) else None
    return depth if isinstance(depth, int) and depth >= 1 else 1


def slots_of(state: RunState, stage: str) -> int:
    """Worker slots of a stage: the setting, or as a worker policy gave it, or as many as proposals may be in flight."""
    return int((state.settings.get("slots") or {}).get(stage) or state.given.get(stage) or depth_of(state))


def _moves(event: Event) -> bool:
    """Whether it can change queues, slots or what is in flight."""
    kinds = (ev.ItemMade, ev.ItemQueued, ev.ItemEnded, ev.JobStarted, ev.JobFinished, ev.JobFailed, ev.JobAbandoned, ev.JobLost)
    return isinstance(event, kinds)


def _mean(values: list[int], weights: list[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights) if values else 0.0


def _limit(
    state: RunState, loads: tuple[Load, ...], depth: int, in_flight: float, calls: float, concurrency: int
) -> tuple[str, str]:
    """What limits the run, in words, and the stage it is ("" when it is no stage)."""
    if state.status == "stopped" and state.stop:
        return f"ended by {state.stop.kind}: {state.stop.reason}".rstrip("."), ""
    if state.status == "paused":
        return f"paused: {_count(len(state.jobs), 'job')} still running, nothing new starts", ""
    if state.pool.version < 0:
        return "the seed is being validated; proposals start after it", ""
    if spent := _nearly_spent(state):
        return f"winding down: {spent}", ""
    if concurrency and calls >= FULL * concurrency:
        return f"the gateway limits the run: {calls:.0f} of {concurrency} calls are in flight", ""
    if saturated := _saturated_server(state):
        return saturated, ""
    full = [load for load in loads if load.share >= FULL and load.waiting >= 0.5]
    if full:
        load = max(full, key=lambda load: load.waiting)
        slots = f"its {_count(load.slots, 'slot')} {'is' if load.slots == 1 else 'are'} {load.share:.0%} busy"
        return f"{load.stage} limits the run: {slots} and {load.waiting:.1f} items wait for it", load.stage
    if depth and in_flight >= FULL * depth:
        return f"the schedule limits the run: {_in_flight(depth)}{_most_time(loads)}", ""
    return f"nothing is full: {in_flight:.1f} of {depth} proposals are in flight{_most_time(loads)}", ""


def _saturated_server(state: RunState) -> str:
    """In words, a server that told at its last look that requests wait inside it, at least a tenth of those in service."""
    told = _longest_queue(state)
    if told is None or told.waiting < max(1.0, 0.1 * told.running):
        return ""
    cache = "" if told.kv_cache is None else f", {told.kv_cache:.0%} of its KV cache in use"
    return f"the server limits the run: {told.running:.0f} requests in service and {told.waiting:.0f} waiting in it{cache}"


def _longest_queue(state: RunState) -> ev.ServerSeen | None:
    return max(state.servers.values(), key=lambda server: server.waiting, default=None)


def _nearly_spent(state: RunState) -> str:
    if state.exhausted:
        return worded(state.exhausted)
    amounts = {**(state.spent + state.reserved).as_dict(), "seconds": state.at}
    shares = {name: amounts[name] / limit for name, limit in state.budget.items() if limit}
    name = max(shares, key=lambda name: shares[name], default="")
    return f"{shares[name]:.0%} of the {name} are spent or reserved" if name and shares[name] >= 0.97 else ""


def _most_time(loads: tuple[Load, ...]) -> str:
    total = sum(load.busy + load.waiting for load in loads)
    if total <= 0:
        return ""
    load = max(loads, key=lambda load: load.busy + load.waiting)
    return f", most of the time in {load.stage} ({(load.busy + load.waiting) / total:.0%})"


def _starving(state: RunState, loads: list[Load], limiting: str) -> str:
    """The stage whose own slots stand idle although it could work."""
    own = state.settings.get("slots") or {}
    idle = [load for load in loads if load.share < IDLE and load.waiting < 0.1 and load.stage != limiting]
    idle = [load for load in idle if limiting or load.stage in own]
    if not idle or state.pool.version < 0:
        return ""
    load = min(idle, key=lambda load: load.share)
    return f"{load.stage} starves ({load.share:.0%} busy)"


def _in_flight(depth: int) -> str:
    return "its one proposal is in flight" if depth == 1 else f"all {depth} proposals it allows are in flight"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
