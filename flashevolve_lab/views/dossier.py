"""What an inspector shows of one artifact, item or job, as frozen values.

Owns the nouns of a `Dossier`. Owns no collecting (`evidence`), no differences and no pixels (widgets). One rule a change must
keep: every text here may come from a model or a user, and is kept as it was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashevolve_lab.core import Sample, Spend
from flashevolve_lab.views.completion import CompletionRow
from flashevolve_lab.views.staleness import StaleRow


@dataclass(frozen=True, slots=True)
class Text:
    """An artifact as a column shows it. ``version``, ``mean``, ``coverage``: None when it is not in the pool.

    ``provisional``: it is in the pool on a part of its validation, so that its mean is a promise; ``rolled_back``: it was.
    """

    id: str
    components: Mapping[str, str]
    origin: str
    component: str
    version: int | None
    mean: float | None
    coverage: float | None
    provisional: bool = False
    rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """One example of the minibatch, run with the parent and with the child (None: not run, or the trouble says why).

    ``current``: with the current counterpart, where that is another text and was run on it (an update gates against it).
    ``shown``: the example as the reflection reads it ("" in logs that do not have it).
    ``late``: the parent's sample came after the rollout was released: the reflection has not seen it.
    """

    example: int
    parent: Sample | None
    child: Sample | None
    current: Sample | None = None
    parent_trouble: str = ""
    child_trouble: str = ""
    shown: str = ""
    late: bool = False


@dataclass(frozen=True, slots=True)
class Spoken:
    """A raw reply of another model than the task's: a reflection, a patch. ``outcome``: ok, or how the call failed.

    ``prompt``: the messages it answers, as text ("" in logs that have only a digest).
    """

    call: str
    at: float
    stage: str
    role: str
    outcome: str
    finish: str
    model: str
    tokens: int
    text: str
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """One job of the item. ``ended``: None while it runs; ``message``: of a failure, ``raw``: a text that could not be used.

    ``first``: the examples of its speculative prefix; ``released``: when its item went on with a part of its result (None: not).
    """

    job: str
    stage: str
    slot: int
    started: float
    ended: float | None
    outcome: str
    message: str = ""
    raw: str = ""
    first: tuple[int, ...] = ()
    released: float | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """Child against parent on the same examples; ``reason``: why it passed or not, in words ("" in old logs).

    ``bound``: ``child_sum`` is not its score but the most it could still have reached.
    """

    at: float
    artifact: str
    parent: str
    passed: bool
    parent_sum: float
    child_sum: float
    reason: str = ""
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """Scores on one validation example: of this text, its parent, its current counterpart and the best (None: not scored)."""

    example: int
    score: float | None
    parent: float | None
    current: float | None
    best: float | None


@dataclass(frozen=True, slots=True)
class Relative:
    """An ancestor or descendant. ``outcome``: "in the pool", "provisional", "rolled back", or how its item ended ("" while it has not)."""

    id: str
    steps: int
    version: int | None
    mean: float | None
    outcome: str


@dataclass(frozen=True, slots=True)
class Act:
    """What became of a person's act, in words. ``item``: the one it was about ("" when it was not taken)."""

    seq: int
    at: float
    item: str
    words: str


@dataclass(frozen=True, slots=True)
class Dossier:
    """Everything about one subject.

    Attributes:
        id: As asked for. item, artifact, job: what it is about ("" when there is none).
        kind: Of the item: seed, proposal, human. base: the version it was made from; ``version``: the pool's now.
        place: Where the item is, in words. stage: where it waits, works, or ended. ``in_flight``: it has not ended.
        outcome, reason: How it ended ("" before).
        origin, component: Of the artifact (the one that is to be changed, before there is one).
        own: The subject's text (None before there is one); ``parent``: what it was made from.
        counterpart: The version that stands in its place; ``recorded_at``: when a verdict recorded it (None: as the front
            stands now).
        best: The best of the pool now. beside: the other stale texts that one job read (or reads) together with it. earlier, later: the text it was updated or patched from, and into.
        completion: What a completion policy did with it: prefix, promise, what came of it, a bound. ``gone``: the rolled-back
            artifact that it descends from ("" for none).
        minibatch: Train examples it was made from and gated on; ``trials``: parent and own on them.
        spent: By the item: calls as charged, and examples scored.
    """

    id: str
    item: str
    artifact: str
    job: str
    kind: str
    base: int
    version: int
    place: str
    stage: str
    in_flight: bool
    outcome: str
    reason: str
    origin: str
    component: str
    own: Text | None
    parent: Text | None
    counterpart: Text | None
    recorded_at: float | None
    best: Text | None
    earlier: Text | None
    later: Text | None
    verdicts: tuple[StaleRow, ...]
    gates: tuple[Gate, ...]
    minibatch: tuple[int, ...]
    trials: tuple[Trial, ...]
    spoken: tuple[Spoken, ...]
    work: tuple[Work, ...]
    notes: tuple[str, ...]
    scores: tuple[Compared, ...]
    ancestors: tuple[Relative, ...]
    descendants: tuple[Relative, ...]
    spent: Spend
    beside: tuple[Text, ...] = ()
    completion: tuple[CompletionRow, ...] = ()
    gone: str = ""
