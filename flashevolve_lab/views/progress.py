"""How far a run is: the score at each commit against what it cost, outcomes, spent against budget, requests in flight.

Owns `Progress` and its values. One rule a change must keep: a point holds what had been spent when it was committed,
in every dimension, so that the same points can be drawn over seconds, calls, tokens or dollars.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import get_args

from flashevolve_lab.core import NOTHING, Entry, Event, Spend
from flashevolve_lab.core import events as ev
from flashevolve_lab.views.facts import RunFacts
from flashevolve_lab.views.folding import Folding
from flashevolve_lab.views.steps import StepChange, StepLine, Steps

OUTCOMES: tuple[ev.ItemOutcome, ...] = get_args(ev.ItemOutcome)


@dataclass(frozen=True, slots=True)
class Point:
    """A commit, or the confirmation of what joined provisionally: when, at what cost so far (failures included), how good.

    ``mean``: the artifact's mean validation score; ``coverage``: share of the validation set behind it, in [0, 1];
    ``best``: the highest mean so far, and ``best_artifact`` who has it (the earliest of equals).
    """

    at: float
    metric_calls: int
    llm_calls: int
    tokens: int
    dollars: float
    proposals: int
    version: int
    artifact: str
    mean: float
    coverage: float
    best: float
    best_artifact: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands after entry ``seq`` at ``at`` seconds. The seed is not counted as a proposal.

    Attributes:
        status: ``"new"``, ``"running"``, ``"paused"`` or ``"stopped"``; then with ``stop_kind`` and ``stop_reason``.
        version: The pool's (-1 while empty). ``best``: highest mean validation score, None before the first commit.
        spent, reserved: In every dimension; ``budget``: the limits there are (``"seconds"`` among them).
        accepted: Committed children (a provisional one counts once it is confirmed); ``outcomes``: ended proposals by outcome, all outcomes named.
        in_flight: Proposals begun and not ended; ``requests``: model calls sent and not answered.
        depth: The effective depth, None while the schedule's own is in force.
        provisional: Artifacts that are in the pool before their full score, now; ``confirmed``, ``rolled_back``: of those before.
        proven: Rejections that were proven before all was scored; ``saved``: validation examples that need not be scored
            for it, ``saved_at_gates``: of minibatches.
        released: Rollouts that went on with a part of their samples.
        failed_jobs, failed_samples, failed_calls: How many failed (retries count again; cancelled calls do not).
    """

    seq: int = 0
    at: float = 0.0
    status: str = "new"
    stop_kind: str = ""
    stop_reason: str = ""
    version: int = -1
    best: float | None = None
    best_artifact: str = ""
    spent: Spend = NOTHING
    reserved: Spend = NOTHING
    budget: Mapping[str, float] = field(default_factory=dict)
    accepted: int = 0
    outcomes: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    in_flight: int = 0
    requests: int = 0
    depth: int | None = None
    provisional: int = 0
    confirmed: int = 0
    rolled_back: int = 0
    proven: int = 0
    saved: int = 0
    saved_at_gates: int = 0
    released: int = 0
    failed_jobs: int = 0
    failed_samples: int = 0
    failed_calls: int = 0

    @property
    def proposals(self) -> int:
        """Children that got a first gate verdict: what "per minute" counts."""
        return self.spent.proposals


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """The points so far, where the run stands, and model requests in flight over time."""

    facts: RunFacts = RunFacts()
    standing: Standing = field(default_factory=Standing)
    points: tuple[Point, ...] = ()
    requests: StepLine = StepLine()


@dataclass(frozen=True, slots=True)
class ProgressDelta:
    """What a feed added: append ``points`` at ``points_from``; ``requests`` is None when nothing changed."""

    standing: Standing
    points_from: int
    points: tuple[Point, ...]
    requests: StepChange | None


class Progress:
    """A live view: feed it the log in any pieces, ask for the whole at any time."""

    def __init__(self) -> None:
        self._folding = Folding()
        self._points: list[Point] = []
        self._points_sent = 0
        self._requests = Steps()
        self._outcomes: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._early: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Progress of {len(self._points)} commits up to entry {self._folding.state.seq}>"

    def feed(self, entries: Iterable[Entry]) -> ProgressDelta:
        """Take in further entries (those seen before are skipped); returns what they changed."""
        for entry in self._folding.fresh(entries):
            at = self._folding.time(entry)
            self._count(entry.event)
            self._folding.take(entry)
            self._draw(entry.event, at)
        start, self._points_sent = self._points_sent, len(self._points)
        return ProgressDelta(self._standing(), start, tuple(self._points[start:]), self._requests.change())

    def snapshot(self) -> ProgressSnapshot:
        """The whole picture so far."""
        facts = RunFacts.of(self._folding.state.started, self._folding.state.llms)
        return ProgressSnapshot(facts, self._standing(), tuple(self._points), self._requests.line())

    def _count(self, event: Event) -> None:
        """What is counted, the state being as it was before the event."""
        match event:
            case ev.ItemEnded(item, outcome) if self._folding.state.items[item].kind != "seed":
                self._outcomes[outcome] += 1
            case ev.JobFailed():
                self._failed["jobs"] += 1
            case ev.SampleFailed():
                self._failed["samples"] += 1
            case ev.CallFinished(_, outcome) if outcome not in ("ok", "cancelled"):
                self._failed["calls"] += 1
            case ev.Released() | ev.Confirmed() | ev.RolledBack():
                self._early[type(event).__name__] += 1
            case ev.Proven():
                self._early["Proven"] += 1
                self._early["saved" if event.stage == "validate" else "saved at gates"] += event.wanted - event.scored
            case _:
                pass

    def _draw(self, event: Event, at: float) -> None:
        """What is drawn, the state being as it is after the event."""
        match event:
            case ev.RunStarted() | ev.CallStarted() | ev.CallFinished():
                self._requests.put(at, len(self._folding.state.calls))
            case ev.Committed(artifact=artifact) | ev.Confirmed(artifact):
                self._points.append(self._point(artifact, at))
            case _:
                pass

    def _point(self, artifact: str, at: float) -> Point:
        member, spent = self._folding.state.pool.members[artifact], self._folding.state.spent
        before = self._points[-1] if self._points else None
        leads = before is None or member.mean > before.best
        return Point(
            at=at,
            metric_calls=spent.metric_calls,
            llm_calls=spent.llm_calls,
            tokens=spent.tokens,
            dollars=spent.dollars,
            proposals=spent.proposals,
            version=member.version,
            artifact=member.id,
            mean=member.mean,
            coverage=member.coverage,
            best=member.mean if before is None or leads else before.best,
            best_artifact=member.id if before is None or leads else before.best_artifact,
        )

    def _standing(self) -> Standing:
        state, last = self._folding.state, self._points[-1] if self._points else None
        return Standing(
            seq=state.seq,
            at=state.at,
            status=state.status,
            stop_kind=state.stop.kind if state.stop else "",
            stop_reason=state.stop.reason if state.stop else "",
            version=state.pool.version,
            best=last.best if last else None,
            best_artifact=last.best_artifact if last else "",
            spent=state.spent,
            reserved=state.reserved,
            budget=dict(state.budget),
            accepted=self._outcomes["committed"],
            outcomes={outcome: self._outcomes[outcome] for outcome in OUTCOMES},
            in_flight=state.in_flight,
            requests=len(state.calls),
            depth=state.effective_depth,
            provisional=len(state.provisional),
            confirmed=self._early["Confirmed"],
            rolled_back=self._early["RolledBack"],
            proven=self._early["Proven"],
            saved=self._early["saved"],
            saved_at_gates=self._early["saved at gates"],
            released=self._early["Released"],
            failed_jobs=self._failed["jobs"],
            failed_samples=self._failed["samples"],
            failed_calls=self._failed["calls"],
        )
