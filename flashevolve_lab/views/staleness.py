"""The feed of staleness: every verdict on a stale item with all it was based on, and counts by action and gap.

Owns `StalenessFeed` and its rows. One rule a change must keep: a row is the verdict as it was recorded; nothing is
judged again here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import get_args, get_type_hints

from flashevolve_lab.core import Entry, Verdict
from flashevolve_lab.core.events import RunResumed, RunStarted, StalenessJudged
from flashevolve_lab.errors import InvariantError
from flashevolve_lab.views.facts import RunFacts

ACTIONS: tuple[str, ...] = get_args(get_type_hints(Verdict)["action"])  # what a policy may order, in this order everywhere


@dataclass(frozen=True, slots=True)
class StaleRow:
    """One verdict. ``reason`` is the policy's, ``why`` says what changed (either may be a user's words).

    ``where``: ``"dequeue"`` (before the expensive stage) or ``"commit"``; ``counterpart``: the artifact that stands in
    the item's place now; ``target``: what a patch is to be written for ("" when none was ordered).
    """

    seq: int
    at: float
    item: str
    artifact: str
    stage: str
    where: str
    base: int
    version: int
    gap: int
    touched: bool
    superseded: bool
    counterpart: str
    action: str
    reason: str
    policy: str
    why: str
    target: str = ""


@dataclass(frozen=True, slots=True)
class StalenessSnapshot:
    """All verdicts in order; ``actions``: action → count; ``gaps``: action → gap → count (gaps rising)."""

    seq: int = 0
    rows: tuple[StaleRow, ...] = ()
    actions: Mapping[str, int] = field(default_factory=dict)
    gaps: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    facts: RunFacts = RunFacts()


@dataclass(frozen=True, slots=True)
class StalenessDelta:
    """What a feed added: append ``rows`` at ``rows_from``; ``actions`` are the counts now."""

    seq: int
    rows_from: int
    rows: tuple[StaleRow, ...]
    actions: Mapping[str, int]


class StalenessFeed:
    """A live view: feed it the log in any pieces, ask for the whole at any time."""

    def __init__(self) -> None:
        self._seq = 0
        self._facts = RunFacts()
        self._rows: list[StaleRow] = []
        self._gaps: dict[str, Counter[int]] = {}

    def __repr__(self) -> str:
        return f"<StalenessFeed of {len(self._rows)} verdicts up to entry {self._seq}>"

    def feed(self, entries: Iterable[Entry]) -> StalenessDelta:
        """Take in further entries (those seen before are skipped); returns what they changed."""
        start = len(self._rows)
        for entry in entries:
            if entry.seq > self._seq:
                self._take(entry)
        return StalenessDelta(self._seq, start, tuple(self._rows[start:]), self._actions())

    def snapshot(self) -> StalenessSnapshot:
        """The whole picture so far."""
        gaps = {action: dict(sorted(counts.items())) for action, counts in self._gaps.items()}
        return StalenessSnapshot(self._seq, tuple(self._rows), self._actions(), gaps, self._facts)

    def _take(self, entry: Entry) -> None:
        if entry.seq != self._seq + 1:
            raise InvariantError(f"entry {entry.seq} came after {self._seq}: feed a view every entry in order")
        self._seq = entry.seq
        match entry.event:
            case StalenessJudged() as judged:
                self._rows.append(_row(entry, judged))
                self._gaps.setdefault(judged.action, Counter())[judged.gap] += 1
            case RunStarted() as started:
                self._facts = RunFacts.of(started)
            case RunResumed() as resumed:
                self._facts = self._facts.after(resumed)
            case _:
                pass

    def _actions(self) -> dict[str, int]:
        return {action: counts.total() for action, counts in self._gaps.items()}


def _row(entry: Entry, judged: StalenessJudged) -> StaleRow:
    return StaleRow(
        seq=entry.seq,
        at=entry.at,
        item=judged.item,
        artifact=judged.artifact,
        stage=judged.stage,
        where=judged.where,
        base=judged.base,
        version=judged.version,
        gap=judged.gap,
        touched=judged.touched,
        superseded=judged.superseded,
        counterpart=judged.counterpart,
        action=judged.action,
        reason=judged.reason,
        policy=judged.policy,
        why=judged.why,
        target=judged.target,
    )
