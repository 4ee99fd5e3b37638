"""The family of a run: every committed artifact, who it came from, how good it is, and who is on the Pareto front.

Owns `Lineage`, its nodes and edges. Owns no layout. One rule a change must keep: front and best are the pool's own answers
(`core.Population`), never computed a second way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flashevolve_lab.core import Entry, Member, Population
from flashevolve_lab.core import events as ev


@dataclass(frozen=True, slots=True)
class Node:
    """A committed artifact.

    ``version``: when it joined; ``parents``: artifacts of the pool (none for the seed, two for a merge); ``origin``: how it
    was made; ``mean`` and ``coverage``: of its validation.
    """

    artifact: str
    version: int
    at: float
    parents: tuple[str, ...]
    origin: str
    component: str
    item: str
    mean: float
    coverage: float


@dataclass(frozen=True, slots=True)
class LineageSnapshot:
    """The whole family: ``front``: artifact → validation instances it wins; ``best``: highest mean ("" while empty)."""

    seq: int = 0
    nodes: tuple[Node, ...] = ()
    front: Mapping[str, int] = field(default_factory=dict)
    best: str = ""

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """(parent, child) pairs, by the child's version."""
        return tuple((parent, node.artifact) for node in self.nodes for parent in node.parents)


@dataclass(frozen=True, slots=True)
class LineageDelta:
    """What a feed added: append ``nodes`` at ``nodes_from``; ``front`` and ``best`` are those of now."""

    seq: int
    nodes_from: int
    nodes: tuple[Node, ...]
    front: Mapping[str, int]
    best: str


class Lineage:
    """A live view: feed it the log in any pieces, ask for the whole at any time."""

    def __init__(self) -> None:
        self._seq = 0
        self._pool = Population()
        self._made: dict[str, ev.ArtifactMade] = {}
        self._nodes: list[Node] = []

    def __repr__(self) -> str:
        return f"<Lineage of {len(self._nodes)} artifacts up to entry {self._seq}>"

    def feed(self, entries: Iterable[Entry]) -> LineageDelta:
        """Take in further entries (those seen before are skipped); returns what they changed."""
        start = len(self._nodes)
        for entry in entries:
            if entry.seq <= self._seq:
                continue
            self._seq = entry.seq
            if isinstance(entry.event, ev.ArtifactMade):
                self._made[entry.event.artifact] = entry.event
            elif isinstance(entry.event, ev.Committed):
                self._commit(entry.event, entry.at)
        return LineageDelta(self._seq, start, tuple(self._nodes[start:]), self._front(), self._best())

    def snapshot(self) -> LineageSnapshot:
        """The whole family so far."""
        return LineageSnapshot(self._seq, tuple(self._nodes), self._front(), self._best())

    def _commit(self, event: ev.Committed, at: float) -> None:
        made = self._made[event.artifact]
        scores = {int(example): score for example, score in event.scores.items()}
        mean = sum(scores.values()) / len(scores) if scores else 0.0
        coverage = len(scores) / event.examples if event.examples else 0.0
        self._pool.add(Member(event.artifact, event.version, event.batch, made.parents, made.component, scores, mean, coverage))
        self._nodes.append(
            Node(event.artifact, event.version, at, made.parents, made.origin, made.component, event.item, mean, coverage)
        )

    def _front(self) -> dict[str, int]:
        return {artifact: mask.bit_count() for artifact, mask in self._pool.front().items()}

    def _best(self) -> str:
        best = self._pool.best()
        return best.id if best else ""
