"""An algorithm as declared wiring: stages, their resources, and the pure rules that route items between them.

Owns `Stage`, `Graph` (checked at construction) and the protocols by which the core asks an algorithm (`Algorithm`) and a policy.
The core knows no algorithm. One rule a change must keep: everything an algorithm answers here is a pure function of the state
and the item; work that waits lives in its `work` coroutines, which the engine runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from flashevolve_lab.core.artifacts import (
    Acceptance,
    Change,
    Gate,
    Item,
    Job,
    Load,
    NewItem,
    Pace,
    Partial,
    Ruling,
    Situation,
    Spend,
    StaleItem,
    Starts,
    Verdict,
)
from flashevolve_lab.core.events import ArtifactMade, Event, Gated, ItemEnded, ItemQueued, Patched, SampleScored
from flashevolve_lab.errors import SetupError

if TYPE_CHECKING:
    from flashevolve_lab.core.state import RunState

Resource = Literal["llm", "agent", "cpu", "sandbox", "writer"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A named step of an algorithm.

    Attributes:
        name: Shown everywhere.
        to: Stages it may hand items to.
        resource: What it mainly occupies.
        judged: Staleness is judged when an item is taken from its queue.
    """

    name: str
    to: tuple[str, ...] = ()
    resource: Resource = "llm"
    judged: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """Stages in the order of the work (the last is nearest to a commit), and where new items enter.

    Raises:
        SetupError: duplicate or unknown stage names, an unknown entry, a stage nothing leads to.
    """

    stages: tuple[Stage, ...]
    entry: str

    def __post_init__(self) -> None:
        names = self.names
        if not names or len(set(names)) != len(names):
            raise SetupError(f"graph: expected distinct stage names, at least one; got {list(names)}")
        if self.entry not in names:
            raise SetupError(f"graph: the entry {self.entry!r} is no stage; the stages are {list(names)}")
        for stage in self.stages:
            if unknown := set(stage.to) - set(names):
                raise SetupError(f"graph: stage {stage.name!r} leads to {sorted(unknown)}, which are no stages")
        if lonely := set(names) - {self.entry} - {to for s in self.stages for to in s.to}:
            raise SetupError(f"graph: nothing leads to {sorted(lonely)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Stage names in order."""
        return tuple(stage.name for stage in self.stages)

    def stage(self, name: str) -> Stage:
        """The stage of this name."""
        return next(stage for stage in self.stages if stage.name == name)


@dataclass(frozen=True, slots=True)
class Commit:
    """An algorithm asks to commit: the core judges staleness once more, then the pool changes."""

    item: str
    artifact: str
    scores: Mapping[int, float]
    examples: int


@dataclass(frozen=True, slots=True)
class Trial:
    """An algorithm asks whether a child passes its gate: the acceptance policy says, and the core goes on as it says.

    ``to``: the stage behind the gate, entered with the facts ``settled``. ``fresh``, ``same``: the item's facts for another round.
    """

    gate: Gate
    artifact: str
    parent: str
    to: str
    fresh: Mapping[str, Any]
    same: Mapping[str, Any]
    settled: Mapping[str, Any]


Route = ArtifactMade | ItemQueued | ItemEnded | Gated | Patched | Commit | Trial


class Algorithm(Protocol):
    """The pure side of an algorithm."""

    @property
    def graph(self) -> Graph:
        """Its declared wiring."""
        ...

    def seed(self) -> tuple[ArtifactMade, NewItem]:
        """The seed artifact, and the item that takes it to version 0."""
        ...

    def begin(self, state: RunState, drawn: Sequence[Item], parent: str | None) -> NewItem | None:
        """Draw the next proposal, after those ``drawn`` in the same batch, from ``parent`` if given; None: nothing to draw."""
        ...

    def need(self, state: RunState, item: Item, stage: str) -> Spend:
        """What a job of this stage may spend at most, apart from its model calls."""
        ...

    def proposal_need(self, state: RunState) -> Spend:
        """What a whole further proposal may need: below it, none is started."""
        ...

    def route(self, state: RunState, item: Item, stage: str, result: Mapping[str, Any]) -> Sequence[Route]:
        """Where an item goes after a stage."""
        ...

    def prefix(self, state: RunState, item: Item, stage: str, share: float, rounds: int) -> Sequence[int]:
        """The examples a job scores first: a ``share`` of them, those that still tell artifacts apart; () where it has no prefix."""
        ...

    def partial(self, state: RunState, job: Job, given: SampleScored) -> tuple[Partial, Mapping[int, float]] | None:
        """How far a job has come with this further sample, and example → score so far; None where nothing can be cut short."""
        ...

    def outdone(self, state: RunState, item: Item, stage: str, partial: Partial, why: str) -> Sequence[Route]:
        """What becomes of an item that can no longer win."""
        ...

    def situation(self, state: RunState, item: Item) -> Situation:
        """Where an item stands against the pool now."""
        ...

    def stale_item(self, state: RunState, item: Item, situation: Situation, commit: Commit | None) -> StaleItem:
        """The values a staleness policy judges."""
        ...

    def companions(self, state: RunState, item: Item, stage: str) -> Sequence[str] | None:
        """Waiting items that a job of this stage on this item may take along, the first ones first; None: jobs here take one."""
        ...

    def inject(self, state: RunState, parent: str, components: Mapping[str, str]) -> Sequence[Event]:
        """A person's text as a new item that takes the same gate as any other."""
        ...

    def update(self, state: RunState, item: Item, situation: Situation) -> Sequence[Route]:
        """What the action ``update`` makes of an item."""
        ...


class Schedule(Protocol):
    """When new proposals may start. ``depth``: the most that are ever in flight.

    Or "auto": then it also has ``least``, ``most`` and ``review(load) -> Sequence[Change]``, and its depth is found in the run.
    """

    @property
    def depth(self) -> int | Literal["auto"]: ...

    def admits(self, pace: Pace) -> Starts: ...


class Staleness(Protocol):
    """What to do with a stale item."""

    def judge(self, item: StaleItem) -> Verdict: ...


class Workers(Protocol):
    """How many slots the stages should have. ``every_s``: lab seconds between reviews, at least; None: nothing is ever reviewed."""

    @property
    def every_s(self) -> float | None: ...

    def judge(self, load: Load) -> Sequence[Change]: ...


class Accepting(Protocol):
    """Whether a child passes its gate."""

    def judge(self, gate: Gate) -> Acceptance: ...


class Completion(Protocol):
    """When a partial result may go on, and when a hopeless one may stop.

    ``whole``: nothing is judged before it is complete. ``prefix``: share of the validation set scored first (1: no prefix).
    ``rounds``: validations in a row after which an example that everything passes leaves the prefix.
    """

    @property
    def whole(self) -> bool: ...

    @property
    def prefix(self) -> float: ...

    @property
    def rounds(self) -> int: ...

    def judge(self, partial: Partial) -> Ruling: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """What `decide` and `plan` consult: the algorithm, and how a recorded setting becomes a live policy."""

    algorithm: Algorithm
    policy: Callable[[Any], Any]

    def schedule(self, state: RunState) -> Schedule:
        """The schedule in force."""
        schedule: Schedule = self.policy(state.settings["schedule"])
        return schedule

    def workers(self, state: RunState) -> Workers | None:
        """The worker policy in force, or None in logs from before there were any."""
        described = state.settings.get("workers")
        policy: Workers | None = None if described is None else self.policy(described)
        return policy

    def acceptance(self, state: RunState) -> Accepting | None:
        """The acceptance policy in force, or None in logs from before there were any."""
        described = state.settings.get("acceptance")
        policy: Accepting | None = None if described is None else self.policy(described)
        return policy

    def completion(self, state: RunState) -> Completion | None:
        """The completion policy in force, or None where everything waits for its whole result (also in old logs)."""
        described = state.settings.get("completion")
        policy: Completion | None = None if described is None else self.policy(described)
        return None if policy is None or getattr(policy, "whole", False) else policy

    def staleness(self, state: RunState) -> Staleness:
        """The staleness policy in force."""
        policy: Staleness = self.policy(state.settings["staleness"])
        return policy
