"""Small worlds: a run without a shell, and an algorithm whose results a test hands in.

Owns `PureRun` (decide, apply, plan, and the invariants after every turn; no clock, no task, no file) and `Toy`. One rule a change
must keep: nothing here waits, so a test of a decision is values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashevolve_lab.core import (
    Algorithm,
    Commit,
    Entry,
    Event,
    Graph,
    Item,
    Job,
    NewItem,
    Partial,
    Route,
    Rules,
    RunState,
    Situation,
    Spend,
    Stage,
    StaleItem,
    apply,
    check,
    content_hash,
    decide,
    events,
    inputs,
    plan,
)
from flashevolve_lab.errors import InvariantError
from flashevolve_lab.policies import Fixed, Full, Pipelined, Policies

TOLD = 30
"""How many of the last events a broken invariant tells."""
MOST = 10_000
"""More decisions than this in one turn are an endless loop."""


@dataclass(frozen=True, slots=True)
class Toy:
    """make → test → commit: two stages, the second judged. A test hands in what a stage made, as the result of its job.

    ``make`` returns ``{"text": str, "passed": bool}`` or ``{"skip": True}``; ``test`` returns ``{"score": float}``. The parent of
    a proposal is the newest member; an item whose ``make`` said ``"superseded": True`` is superseded by any commit.

    Args:
        cost: Metric calls that a ``test`` reserves.
    """

    cost: int = 2

    @property
    def graph(self) -> Graph:
        """Make and test; an update goes back to ``make``."""
        return Graph((Stage("make", to=("test",)), Stage("test", to=("make",), judged=True)), "make")

    def seed(self) -> tuple[events.ArtifactMade, NewItem]:
        """The text "seed", waiting for its test."""
        made = events.ArtifactMade("a0", {"text": "seed"}, content_hash({"text": "seed"}), (), "seed", "", "p0")
        return made, NewItem("seed", "test", 0, {"child": "a0"})

    def begin(self, state: RunState, drawn: Sequence[Item], parent: str | None) -> NewItem | None:
        """A proposal on the newest member."""
        return NewItem("proposal", "make", state.pool.version, {"parent": parent or state.pool.order[-1].id})

    def need(self, state: RunState, item: Item, stage: str) -> Spend:
        """``cost`` metric calls for a test."""
        return Spend(metric_calls=self.cost) if stage == "test" else Spend()

    def proposal_need(self, state: RunState) -> Spend:
        """One test."""
        return Spend(metric_calls=self.cost)

    def route(self, state: RunState, item: Item, stage: str, result: Mapping[str, Any]) -> Sequence[Route]:
        """As the result says."""
        if stage == "test":
            return [Commit(item.id, item.data["child"], {0: float(result["score"])}, 1)]
        if result.get("skip"):
            return [events.ItemEnded(item.id, "skipped", "told to skip")]
        components = {"text": str(result["text"])}
        child, parent, passed = state.next_id("a"), item.data["parent"], bool(result.get("passed", True))
        made = events.ArtifactMade(child, components, content_hash(components), (parent,), "reflection", "text", item.id)
        gated = events.Gated(item.id, child, parent, passed, not item.gated, 0.0, float(passed))
        facts = {"child": child, "superseded": bool(result.get("superseded"))}
        if passed:
            return [made, gated, events.ItemQueued(item.id, "test", facts)]
        return [made, gated, events.ItemEnded(item.id, "rejected", "told to reject", child)]

    def prefix(self, state: RunState, item: Item, stage: str, share: float, rounds: int) -> Sequence[int]:
        """None: a test is one sample."""
        return ()

    def partial(self, state: RunState, job: Job, given: events.SampleScored) -> tuple[Partial, Mapping[int, float]] | None:
        """None: its jobs have no parts."""
        return None

    def outdone(self, state: RunState, item: Item, stage: str, partial: Partial, why: str) -> Sequence[Route]:
        """It ends; never asked."""
        return [events.ItemEnded(item.id, "outdone", why, item.data.get("child", ""))]

    def situation(self, state: RunState, item: Item) -> Situation:
        """Stale by any commit since its base."""
        gap = 0 if item.kind == "seed" else state.pool.gap(item.base, item.batch)
        superseded = gap > 0 and bool(item.data.get("superseded"))
        return Situation(gap, gap > 0, superseded, f"{gap} commits since", state.pool.order[-1].id if gap else "")

    def stale_item(self, state: RunState, item: Item, situation: Situation, commit: Commit | None) -> StaleItem:
        """The facts of the situation; scores are plain."""
        best = state.pool.best()
        assert best is not None
        return StaleItem(
            item=item.id,
            kind=item.kind,
            where="commit" if commit else "dequeue",
            gap=situation.gap,
            touched=situation.touched,
            superseded=situation.superseded,
            updates=item.updates,
            gain=float(item.data.get("gain", 0.0)),
            parent_score=state.pool.members[item.data["parent"]].mean,
            best_score=best.mean,
            score=commit.scores[0] if commit else None,
            base=item.base,
            version=state.pool.version,
        )

    def companions(self, state: RunState, item: Item, stage: str) -> Sequence[str] | None:
        """None: its jobs take one item each."""
        return None

    def inject(self, state: RunState, parent: str, components: Mapping[str, str]) -> Sequence[Event]:
        """A person's text, waiting for its test."""
        child, id = state.next_id("a"), state.next_id("p")
        made = events.ArtifactMade(child, components, content_hash(components), (parent,), "human", "text", id)
        facts = {"parent": parent, "child": child}
        return [made, events.ItemMade(id, "human", "test", state.pool.version, state.batches + 1, facts)]

    def update(self, state: RunState, item: Item, situation: Situation) -> Sequence[Route]:
        """Make it again on the newest member."""
        return [events.ItemQueued(item.id, "make", {"parent": situation.counterpart}, base=state.pool.version)]


class PureRun:
    """A run driven by hand: give it inputs, look at its events and its state. Every turn ends with `check`.

    Args:
        algorithm: `Toy` by default.
        schedule, staleness, workers: Policies; by default ``Pipelined(1)``, `Full` and `Fixed`.
        budget: Dimension → limit.
        settings: Further settings as the log has them (``slots``, ``max_failures``, ``concurrency``).
    """

    def __init__(
        self,
        algorithm: Algorithm | None = None,
        *,
        schedule: Any = None,
        staleness: Any = None,
        workers: Any = None,
        budget: Mapping[str, float] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.algorithm: Algorithm = algorithm if algorithm is not None else Toy()
        self.policies = Policies()
        self.rules = Rules(self.algorithm, self.policies)
        self.state = RunState()
        self.entries: list[Entry] = []
        self.at = 0.0
        knobs = {"schedule": schedule or Pipelined(1), "staleness": staleness or Full(), "workers": workers or Fixed()}
        values = {**{knob: self.policies.live(policy) for knob, policy in knobs.items()}, "slots": {}, **(settings or {})}
        started = events.RunStarted(
            run="pure",
            created="2026-01-01T00:00:00+00:00",
            seed=0,
            clock="virtual",
            algorithm={"name": type(self.algorithm).__name__},
            stages=self.algorithm.graph.names,
            settings=values,
            budget=budget or {},
            task={},
            llm={},
        )
        self.turn(inputs.Start(started))

    def turn(self, *given: inputs.Input, at: float | None = None) -> list[Event]:
        """One turn of the loop: what the inputs mean, then everything that may start. Returns the events of both."""
        return self.give(*given, at=at) + self.plan()

    def give(self, *given: inputs.Input, at: float | None = None) -> list[Event]:
        """Decide and apply, without planning. ``at``: lab seconds; by default as before."""
        self.at = self.at if at is None else at
        return [event for one in given for event in self._applied(decide(self.state, one, self.at, self.rules))]

    def plan(self) -> list[Event]:
        """Everything that may start now."""
        happened: list[Event] = []
        for _ in range(MOST):
            planned = plan(self.state, self.at, self.rules)
            if not planned:
                return happened
            happened += self._applied(planned)
        raise InvariantError("planning does not end", self._story())

    def job(self, stage: str) -> Job:
        """The oldest running job of a stage."""
        running = [job for job in self.state.jobs.values() if job.stage == stage]
        if not running:
            raise AssertionError(f"no job of {stage!r} is running; running: {sorted(self.state.jobs)}")
        return running[0]

    def finish(self, stage: str, **result: Any) -> list[Event]:
        """The oldest running job of a stage returns this result; then a turn."""
        return self.turn(inputs.JobDone(self.job(stage).id, result))

    def fail(self, stage: str, kind: str = "error", message: str = "told to fail", again: bool = False) -> list[Event]:
        """The oldest running job of a stage fails; then a turn."""
        return self.turn(inputs.JobBroke(self.job(stage).id, kind, message, again=again))

    def set(self, **knobs: Any) -> list[Event]:
        """Change knobs; policies may be given as objects."""
        values = {k: self.policies.live(v) if k in ("schedule", "staleness", "workers") else v for k, v in knobs.items()}
        return self.turn(inputs.SetKnobs(values))

    def of(self, kind: type[Any]) -> list[Any]:
        """All events of a kind so far."""
        return [entry.event for entry in self.entries if isinstance(entry.event, kind)]

    def _applied(self, happened: list[Event]) -> list[Event]:
        for event in happened:
            entry = Entry(self.state.seq + 1, self.at, event)
            apply(self.state, entry)
            self.entries.append(entry)
        try:
            check(self.state)
        except InvariantError as error:
            raise InvariantError(str(error), self._story()) from error
        return happened

    def _story(self) -> tuple[str, ...]:
        return tuple(f"{entry.seq} {entry.event}" for entry in self.entries[-TOLD:])
