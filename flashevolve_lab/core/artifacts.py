"""The frozen values a run is made of: artifacts, items, jobs, calls, and what they cost.

Owns the nouns of the log. Owns no behaviour beyond arithmetic of `Spend`. One rule a change must keep: every value here can be
rebuilt from JSON, and holds no clock, no function and no secret.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Literal

Origin = Literal["seed", "reflection", "update", "patch", "merge", "human"]

DIMENSIONS = ("metric_calls", "llm_calls", "tokens", "dollars", "proposals")


@dataclass(frozen=True, slots=True)
class Spend:
    """An amount in every dimension of a budget.

    ``metric_calls``: one program on one example; ``llm_calls``: attempts sent to a model; ``tokens``: prompt + completion;
    ``dollars``: by the price given; ``proposals``: children that got a first gate verdict.
    """

    metric_calls: int = 0
    llm_calls: int = 0
    tokens: int = 0
    dollars: float = 0.0
    proposals: int = 0

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.metric_calls + other.metric_calls,
            self.llm_calls + other.llm_calls,
            self.tokens + other.tokens,
            self.dollars + other.dollars,
            self.proposals + other.proposals,
        )

    def __sub__(self, other: Spend) -> Spend:
        return Spend(
            self.metric_calls - other.metric_calls,
            self.llm_calls - other.llm_calls,
            self.tokens - other.tokens,
            self.dollars - other.dollars,
            self.proposals - other.proposals,
        )

    def as_dict(self) -> dict[str, float]:
        """Dimension → amount."""
        return {name: getattr(self, name) for name in DIMENSIONS}


NOTHING = Spend()


@dataclass(frozen=True, slots=True)
class Artifact:
    """What evolves: component name → text, with where it came from.

    ``component`` is the one that was changed ("" for a seed); ``item`` the item that made it.
    """

    id: str
    components: Mapping[str, str]
    hash: str
    parents: tuple[str, ...] = ()
    origin: Origin = "seed"
    component: str = ""
    item: str = ""


@dataclass(slots=True)
class Item:
    """A unit of work on its way through the graph (in GEPA: the seed, or one proposal). Only `apply` changes it.

    ``base``: the version it was made from. ``data``: the algorithm's own JSON facts. ``stage``: the queue it waits in or the
    stage that works on it. ``batch``: the batch it started with. ``tries``: jobs that failed at this stage. ``updates``, ``patches``: how often it was updated, read by the patch stage.
    """

    id: str
    kind: str
    base: int
    batch: int
    data: dict[str, Any]
    stage: str
    queued_at: float
    tries: int = 0
    updates: int = 0
    patches: int = 0
    gated: bool = False


@dataclass(slots=True)
class Job:
    """One unit of work of a stage, occupying a worker slot. ``reserved`` is what it may still spend.

    ``first``: the examples of its speculative prefix. ``released``: its item has gone on; what runs is its tail.
    ``open``: names of its calls that missed the window of a join, on the component ``topic``.
    ``also``: further items it works on together with ``item``, the first of them.
    """

    id: str
    stage: str
    slot: int
    item: str
    version: int
    started_at: float
    reserved: Spend
    stepped: bool = False
    first: tuple[int, ...] = ()
    released: bool = False
    topic: str = ""
    open: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def items(self) -> tuple[str, ...]:
        """All it works on, the first one first."""
        return self.item, *self.also


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt sent to a model and not yet answered. ``key`` names it inside its item and stage."""

    id: str
    job: str
    role: str
    key: str
    attempt: int
    reserved: Spend
    started_at: float
    request: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's reply that a job of an unfinished item already has: a later job of the same stage need not pay for it again."""

    request: str
    text: str
    finish: str
    model: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One program run on one example, scored. ``output`` and ``feedback`` are as text."""

    score: float
    output: str = ""
    feedback: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a staleness policy orders, and why in words. ``onto``: what a ``patch`` writes the text for (see `Situation`)."""

    action: Literal["accept", "update", "patch", "discard"]
    reason: str
    onto: Literal["counterpart", "best"] = "counterpart"


@dataclass(frozen=True, slots=True)
class StaleItem:
    """All a staleness policy gets to see.

    Attributes:
        item: Its id; ``kind``: what it is ("proposal").
        where: ``"dequeue"`` (before the expensive stage) or ``"commit"`` (already validated).
        gap: Versions since its base version, ≥ 1 (commits of its own batch not counted).
        touched: Something it read has changed since. superseded: What it would change has been replaced.
        updates: How often it was already updated to a newer base.
        gain: Child's minus parent's sum on the minibatch.
        parent_score, best_score: Mean validation scores of its parent and of the pool's best.
        score: Its own mean validation score at commit, else None.
        base, version: Its base version and the version now.
        load: Calls in flight as a share of the limit, 0 … 1: near 1 the server is saturated.
        patching: Stale items that wait for, or are in, the patch stage.
        parent, best: Ids of what it was made from, and of the pool's best.
    """

    item: str
    kind: str
    where: Literal["dequeue", "commit"]
    gap: int
    touched: bool
    superseded: bool
    updates: int
    gain: float
    parent_score: float
    best_score: float
    score: float | None
    base: int
    version: int
    load: float = 0.0
    patching: int = 0
    parent: str = ""
    best: str = ""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A child that did not pass its gate: its id and both sums (``bound``: the child's is the most it could have reached)."""

    artifact: str
    parent_sum: float
    child_sum: float
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Gate:
    """How a child and its parent scored on the same examples: all an acceptance policy gets to see.

    Attributes:
        item: Its id; ``kind``: what it is ("proposal", "human").
        parent, child: A tuple of scores for each round, the first round on the item's minibatch; example by example the same.
    """

    item: str
    kind: str
    parent: tuple[tuple[float, ...], ...]
    child: tuple[tuple[float, ...], ...]

    @property
    def rounds(self) -> int:
        """Rounds run so far, ≥ 1."""
        return len(self.child)

    @property
    def parent_sum(self) -> float:
        """The parent's sum over all rounds, exact: no win by the order of rounding."""
        return fsum(score for scores in self.parent for score in scores)

    @property
    def child_sum(self) -> float:
        """The child's sum over all rounds, exact."""
        return fsum(score for scores in self.child for score in scores)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What an acceptance policy orders, and why in words: pass, or not; or ``again``, one more round before it decides.

    ``fresh``: the further round is on examples that this gate has not seen; else both texts run once more on the minibatch.
    """

    passed: bool
    reason: str
    again: bool = False
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class Situation:
    """Where an item stands against the pool now: gap, touched, superseded, why in words, its current counterpart, the pool's best."""

    gap: int
    touched: bool
    superseded: bool
    why: str
    counterpart: str
    best: str = ""


@dataclass(frozen=True, slots=True)
class Partial:
    """How far a job has come with its examples: all a completion policy gets to see.

    Attributes:
        stage: ``"rollout"``, ``"gate"`` or ``"validate"``.
        scored, wanted: Examples scored so far, and in all. A partial score carries its coverage; missing is not zero.
        score: Mean over those scored so far.
        reach: The highest mean still possible: every other example at the task's perfect value. A bound, never a score.
        bar: Mean that has to be exceeded: the parent's on the minibatch (gate), the best artifact's on the validation set
            (validate).
        parent: The parent's mean on the whole validation set (validate); -∞ where it has none: it is provisional, or was rolled back.
        alone: Validation examples on which it could still be better than everything in the pool that is not provisional.
        prefix, prefix_wanted: Of the speculative prefix: examples scored, and in all (0: none is used).
        parent_so_far, best_so_far: On the same examples as ``score``: the parent's mean, the best artifact's (validate).
        flawless: All scored so far are perfect.
        provisional: It is in the pool already, provisionally.
    """

    stage: str
    scored: int
    wanted: int
    score: float
    reach: float = 1.0
    bar: float = 1.0
    parent: float = 1.0
    alone: int = 1
    prefix: int = 0
    prefix_wanted: int = 0
    parent_so_far: float = 0.0
    best_so_far: float = 0.0
    flawless: bool = False
    provisional: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a completion policy orders, and why in words.

    ``wait``; ``release``: the item goes on with what there is, the tail keeps running (rollout); ``insert``: into the pool,
    provisionally, to stay if its full mean exceeds that of ``rival`` (validate); ``stop``: it can no longer win (gate, validate).
    """

    action: Literal["wait", "release", "insert", "stop"]
    reason: str = ""
    rival: Literal["parent", "best"] = "parent"


@dataclass(frozen=True, slots=True)
class Pace:
    """All a schedule gets to see: proposals in flight, and the version."""

    in_flight: int
    version: int


@dataclass(frozen=True, slots=True)
class Starts:
    """How many proposals may start now, and how many of them share a parent. ``together``: as one batch."""

    count: int
    per_parent: int = 1
    together: bool = False


@dataclass(frozen=True, slots=True)
class StageLoad:
    """A stage since the last review.

    Attributes:
        slots: Worker slots it has now; ``by_hand``: a person set them, so no policy changes them.
        busy, waiting: Slots in use and items in front of it, as time averages. In front of the first stage also the proposals
            that the schedule would start.
        served: Slots in use whose job has a call in flight, time average; the others in use wait for the server.
        rate: Jobs finished a minute.
    """

    stage: str
    slots: int
    busy: float = 0.0
    waiting: float = 0.0
    rate: float = 0.0
    by_hand: bool = False
    served: float = 0.0

    @property
    def wait_s(self) -> float:
        """Mean seconds that an item waits here (Little's law); 0 where nothing was done."""
        return 60.0 * self.waiting / self.rate if self.rate else 0.0


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The run's server since the last review; where roles have servers of their own, the busiest of them.

    Attributes:
        busy: Calls in flight as a share of the calls that may be, time average. ``lately``: the same over the last reviews at the
            depth in force.
        calls: Calls that may be in flight at each server: the setting "concurrency"; ``ceiling``: as a person last set it.
        lowered: A server is given fewer for now (429, missed deadlines).
        backlog: Calls that running jobs still have to make and that are not in flight, now: they wait for a slot.
        refused: 429s. ``latency_s``: mean seconds of an answered call; ``slowdown``: as a multiple of the lowest mean so far, ≥ 1.
        running, waiting, kv_cache: What the fullest server last said of itself: requests in service and waiting, share of its KV
            cache in use (0..1); None where it says nothing.
    """

    busy: float = 0.0
    lately: float = 0.0
    calls: int = 64
    ceiling: int = 64
    lowered: bool = False
    backlog: int = 0
    refused: int = 0
    latency_s: float = 0.0
    slowdown: float = 1.0
    running: float | None = None
    waiting: float | None = None
    kv_cache: float | None = None


@dataclass(frozen=True, slots=True)
class Brought:
    """What a number of slots of the first stage brought while it was in force, older reviews counting less and less.

    Attributes:
        slots: That number (0: as the schedule or a person had them). reviews: How many there were, without the one right after the change.
        seconds, accepted, calls, tokens: Lab seconds, proposals committed, calls and tokens paid; weighted, so not whole.
    """

    slots: int = 0
    reviews: int = 0
    seconds: float = 0.0
    accepted: float = 0.0
    calls: float = 0.0
    tokens: float = 0.0

    @property
    def per_minute(self) -> float:
        """Accepted proposals a minute."""
        return 60.0 * self.accepted / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """All a worker policy (and a schedule that finds its own depth) gets to see.

    Attributes:
        seconds: Lab seconds since the last review.
        stages: In the order of the work.
        depth: Proposals that may be in flight now; ``in_flight``: that were, time average.
        proposals, accepted, discarded, tokens: Since the last review; discarded for staleness.
        now, before: What the first stage's slots brought since a policy last changed them, and what the number before did; None
            where there was no such change, or where something else changed since (depth, concurrency, a knob).
    """

    seconds: float
    stages: tuple[StageLoad, ...]
    server: ServerLoad
    depth: int
    in_flight: float
    proposals: int = 0
    accepted: int = 0
    discarded: int = 0
    tokens: int = 0
    now: Brought | None = None
    before: Brought | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What a review would like: ``to`` slots of a stage, or ``to`` as the "depth" or the "concurrency"; and why in words.

    It is made once ``after`` reviews in a row wanted it in the same direction and more than ``pause`` reviews passed since it last
    changed. Each change against the direction of the one before doubles ``after`` for the next one.
    """

    what: str
    to: int
    why: str
    after: int = 1
    pause: int = 0


@dataclass(frozen=True, slots=True)
class NewItem:
    """A fresh item as an algorithm draws it, before it has an id. ``artifact``: a text that is made with it (a merge)."""

    kind: str
    stage: str
    base: int
    data: Mapping[str, Any] = field(default_factory=dict)
    artifact: Artifact | None = None


def content_hash(components: Mapping[str, str]) -> str:
    """A hash of the texts: equal texts, equal hash (16 hexadecimal digits)."""
    return hashlib.sha256(json.dumps(sorted(components.items())).encode()).hexdigest()[:16]
