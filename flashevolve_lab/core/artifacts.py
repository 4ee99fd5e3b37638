"""The frozen values a run is made of: artifacts, items, jobs, calls, and what they cost.

Owns the nouns of the log. Owns no behaviour beyond arithmetic of `Spend`. One rule a change must keep: every value here can be
rebuilt from JSON, and holds no clock, no function and no secret.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """One unit of work of a stage, occupying a worker slot. ``reserved`` is what it may still spend."""

    id: str
    stage: str
    slot: int
    item: str
    version: int
    started_at: float
    reserved: Spend
    stepped: bool = False


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
    """What a staleness policy orders, and why in words."""

    action: Literal["accept", "update", "patch", "discard"]
    reason: str


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


@dataclass(frozen=True, slots=True)
class Situation:
    """Where an item stands against the pool now: gap, touched, superseded, why in words, and its current counterpart."""

    gap: int
    touched: bool
    superseded: bool
    why: str
    counterpart: str


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
class NewItem:
    """A fresh item as an algorithm draws it, before it has an id."""

    kind: str
    stage: str
    base: int
    data: Mapping[str, Any] = field(default_factory=dict)


def content_hash(components: Mapping[str, str]) -> str:
    """A hash of the texts: equal texts, equal hash (16 hexadecimal digits)."""
    return hashlib.sha256(json.dumps(sorted(components.items())).encode()).hexdigest()[:16]
