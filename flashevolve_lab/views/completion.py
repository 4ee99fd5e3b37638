"""What completion policies did: releases, provisional insertions and what came of them, rejections that were proven.

Owns `CompletionFeed`, its rows and counts. One rule a change must keep: a bound stands in ``bound`` and never in ``score``, and
what an artifact promised on a part of its examples is told apart from what it came to by ``scored`` and ``wanted``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum
from typing import Literal

from flashevolve_lab.core import Entry, RunState
from flashevolve_lab.core import events as ev
from flashevolve_lab.views.folding import Folding

CompletionKind = Literal["released", "provisional", "confirmed", "rolled back", "proven"]
COMPLETIONS: tuple[CompletionKind, ...] = (
    "released",
    "provisional",
    "confirmed",
    "rolled back",
    "proven",
)  # everywhere in this order


@dataclass(frozen=True, slots=True)
class CompletionRow:
    """One event of a completion policy.

    Attributes:
        kind: What happened. ``job``: in which job ("" for what happened outside any); ``stage``: of it.
        artifact: What it works on or has in the pool (of a released rollout: the parent that it runs).
        version: The pool's, once it happened.
        scored, wanted: How many of the examples were in (of a roll-back before its full score: so far).
        score: Mean over those. For a provisional artifact a promise; None where nothing may be called its score.
        bound: The highest mean it could still have reached, of what was proven; None else. Not a score.
        prefix, prefix_score: Of its speculative prefix: examples that are in, and the mean over them (0, None: it had none).
        rival: The artifact whose mean a provisional one has to exceed; ``rival_score``: that, on the same examples.
        examples: What was scored so far (released, provisional); ``late``: examples that came after a release.
        derived: Items in flight and artifacts made from what was rolled back.
    """

    seq: int
    at: float
    kind: CompletionKind
    item: str
    artifact: str
    job: str
    stage: str
    version: int
    scored: int
    wanted: int
    score: float | None
    bound: float | None
    rival: str
    rival_score: float | None
    reason: str
    examples: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    derived: tuple[str, ...] = ()
    prefix: int = 0
    prefix_score: float | None = None

    @property
    def saved(self) -> int:
        """Examples that need not be scored, because it was proven that they cannot matter."""
        return self.wanted - self.scored if self.kind == "proven" else 0


@dataclass(frozen=True, slots=True)
class CompletionSnapshot:
    """Everything so far.

    Attributes:
        counts: Kind → how often, all kinds named. ``provisional``: artifacts that are in the pool provisionally now.
        proven: Stage → rejections that were proven there; ``saved``: stage → examples that were not scored because of them.
    """

    seq: int = 0
    rows: tuple[CompletionRow, ...] = ()
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(COMPLETIONS, 0))
    provisional: int = 0
    proven: Mapping[str, int] = field(default_factory=dict)
    saved: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """What a feed added: append ``rows`` at ``rows_from``."""

    seq: int
    rows_from: int
    rows: tuple[CompletionRow, ...]


class CompletionFeed:
    """A live view: feed it the log in any pieces, ask for the whole at any time."""

    def __init__(self) -> None:
        self._folding = Folding()
        self._rows: list[CompletionRow] = []
        self._jobs: dict[str, str] = {}  # item → its job at work, or its last one
        self._counts: Counter[str] = Counter()
        self._proven: Counter[str] = Counter()
        self._saved: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<CompletionFeed of {len(self._rows)} events up to entry {self._folding.state.seq}>"

    def feed(self, entries: Iterable[Entry]) -> CompletionDelta:
        """Take in further entries (those seen before are skipped); returns what they added."""
        start = len(self._rows)
        for entry in self._folding.fresh(entries):
            if isinstance(entry.event, ev.JobStarted):
                for item in (entry.event.item, *entry.event.also):
                    self._jobs[item] = entry.event.job
            row = completion_row(self._folding.state, entry, self._folding.time(entry), self._jobs)
            if row is not None:
                self._count(row)
            self._folding.take(entry)
        return CompletionDelta(self._folding.state.seq, start, tuple(self._rows[start:]))

    def snapshot(self) -> CompletionSnapshot:
        """The whole picture so far."""
        state = self._folding.state
        return CompletionSnapshot(
            seq=state.seq,
            rows=tuple(self._rows),
            counts={kind: self._counts[kind] for kind in COMPLETIONS},
            provisional=len(state.provisional),
            proven=dict(self._proven),
            saved=dict(self._saved),
        )

    def _count(self, row: CompletionRow) -> None:
        self._rows.append(row)
        self._counts[row.kind] += 1
        if row.kind == "proven":
            self._proven[row.stage] += 1
            self._saved[row.stage] += row.saved


def completion_row(state: RunState, entry: Entry, at: float, jobs: Mapping[str, str]) -> CompletionRow | None:
    """The row of an entry, or None; ``state``: as it was before it, ``jobs``: item → its job at work, or its last one."""
    match entry.event:
        case ev.Released() as released:
            return _released(state, entry.seq, at, released)
        case ev.Proven() as proven:
            return _proved(state, entry.seq, at, proven)
        case ev.Provisional() as early:
            return _inserted(state, entry.seq, at, early, jobs)
        case ev.Confirmed() as confirmed:
            return _confirmed(state, entry.seq, at, confirmed, jobs)
        case ev.RolledBack() as gone:
            return _rolled_back(state, entry.seq, at, gone, jobs)
        case _:
            return None


def _released(state: RunState, seq: int, at: float, event: ev.Released) -> CompletionRow:
    job = state.jobs[event.job]
    item = state.items[job.item]
    seen, scores = tuple(event.result.get("seen", ())), tuple(event.result.get("scores", ()))
    wanted = tuple(item.data.get("minibatch", ())) or seen
    return CompletionRow(
        seq, at, "released", item.id, str(item.data.get("parent", "")), job.id, job.stage, state.pool.version,
        scored=len(seen), wanted=len(wanted), score=_mean(scores), bound=None, rival="", rival_score=None, reason=event.why,
        examples=seen, late=tuple(example for example in wanted if example not in seen),
    )  # fmt: skip


def _proved(state: RunState, seq: int, at: float, event: ev.Proven) -> CompletionRow:
    return CompletionRow(
        seq, at, "proven", event.item, event.artifact, event.job, event.stage, state.pool.version,
        scored=event.scored, wanted=event.wanted, score=None, bound=event.reach, rival="", rival_score=None, reason=event.why,
    )  # fmt: skip


def _inserted(state: RunState, seq: int, at: float, event: ev.Provisional, jobs: Mapping[str, str]) -> CompletionRow:
    job = state.jobs.get(jobs.get(event.item, ""))
    first = [event.scores[str(example)] for example in (job.first if job else ()) if str(example) in event.scores]
    return CompletionRow(
        seq, at, "provisional", event.item, event.artifact, *_whose(state, event.item, jobs), event.version,
        scored=len(event.scores), wanted=event.examples, score=_mean(event.scores.values()), bound=None,
        rival=event.rival, rival_score=_rival(state, event.rival, event.scores), reason=event.why,
        examples=tuple(sorted(int(example) for example in event.scores)), prefix=len(first), prefix_score=_mean(first),
    )  # fmt: skip


def _confirmed(state: RunState, seq: int, at: float, event: ev.Confirmed, jobs: Mapping[str, str]) -> CompletionRow:
    pool = state.pool
    rival, mean = pool.members[event.artifact].rival, _mean(event.scores.values())
    bar = _rival(state, rival, event.scores)
    over = "" if mean is None or bar is None else f": {mean:.3f} in all, above the {bar:.3f} of {rival}"
    return CompletionRow(
        seq, at, "confirmed", event.item, event.artifact, *_whose(state, event.item, jobs), pool.version,
        scored=len(event.scores), wanted=event.examples, score=mean, bound=None, rival=rival, rival_score=bar,
        reason=f"it keeps what its prefix promised{over}",
    )  # fmt: skip


def _rolled_back(state: RunState, seq: int, at: float, event: ev.RolledBack, jobs: Mapping[str, str]) -> CompletionRow:
    member = state.pool.members[event.artifact]
    wanted = round(len(member.scores) / member.coverage) if member.coverage else len(member.scores)
    scored = state.samples.get((state.artifacts[event.artifact].hash, "val"), {})
    scores = {str(example): sample.score for example, sample in scored.items()}
    return CompletionRow(
        seq, at, "rolled back", event.item, event.artifact, *_whose(state, event.item, jobs), event.version,
        scored=len(scores), wanted=wanted, score=_mean(scores.values()), bound=None, rival=member.rival,
        rival_score=_rival(state, member.rival, scores), reason=event.reason, derived=event.derived,
    )  # fmt: skip


def _whose(state: RunState, item: str, jobs: Mapping[str, str]) -> tuple[str, str]:
    """The job that works on an item, or did last, and its stage."""
    return jobs.get(item, ""), state.items[item].stage


def _rival(state: RunState, rival: str, scores: Mapping[str, float]) -> float | None:
    member = state.pool.members.get(rival)
    return None if member is None else _mean([member.scores[int(e)] for e in scores if int(e) in member.scores])


def _mean(scores: Iterable[float]) -> float | None:
    values = list(scores)
    return fsum(values) / len(values) if values else None
