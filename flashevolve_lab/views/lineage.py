"""The family of a run: every artifact that joined the pool, who it came from, how good it is, and who is on the Pareto front.

Owns `Lineage`, its nodes and edges; those that were rolled back stay in it, marked, and so does what was made from them. Owns no
layout. One rule a change must keep: front and best are the pool's own answers (`core.Population`), never computed a second way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from flashevolve_lab.core import Entry, Member, Population
from flashevolve_lab.core import events as ev

Standing = Literal["in the pool", "provisional", "rolled back"]


@dataclass(frozen=True, slots=True)
class Node:
    """An artifact that is in the pool, or was until it was rolled back.

    ``version``: when it joined; ``parents``: artifacts of the pool (none for the seed, two for a merge); ``origin``: how it
    was made; ``mean`` and ``coverage``: of its validation, a part of it while provisional (and if it was rolled back then).
    ``standing``: where it stands now; ``reason``: why it was rolled back; ``from_gone``: the rolled-back artifact it descends from.
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
    standing: Standing = "in the pool"
    reason: str = ""
    from_gone: str = ""


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
    """What a feed added: append ``nodes`` at ``nodes_from``, replace those in ``changed`` (by artifact); front and best of now."""

    seq: int
    nodes_from: int
    nodes: tuple[Node, ...]
    changed: tuple[Node, ...]
    front: Mapping[str, int]
    best: str


class Lineage:
    """A live view: feed it the log in any pieces, ask for the whole at any time."""

    def __init__(self) -> None:
        self._seq = 0
        self._pool = Population()
        self._made: dict[str, ev.ArtifactMade] = {}
        self._nodes: dict[str, Node] = {}
        self._changed: dict[str, None] = {}  # artifacts whose node is another since the last delta

    def __repr__(self) -> str:
        return f"<Lineage of {len(self._nodes)} artifacts up to entry {self._seq}>"

    def feed(self, entries: Iterable[Entry]) -> LineageDelta:
        """Take in further entries (those seen before are skipped); returns what they changed."""
        start = len(self._nodes)
        for entry in entries:
            if entry.seq <= self._seq:
                continue
            self._seq = entry.seq
            self._take(entry.event, entry.at)
        nodes, known = list(self._nodes.values()), list(self._nodes)[:start]
        changed = tuple(self._nodes[artifact] for artifact in known if artifact in self._changed)
        self._changed.clear()
        return LineageDelta(self._seq, start, tuple(nodes[start:]), changed, self._front(), self._best())

    def snapshot(self) -> LineageSnapshot:
        """The whole family so far."""
        return LineageSnapshot(self._seq, tuple(self._nodes.values()), self._front(), self._best())

    def _take(self, event: ev.Event, at: float) -> None:
        match event:
            case ev.ArtifactMade(artifact):
                self._made[artifact] = event
            case ev.Committed(version, artifact, item, batch, scores, examples):
                member = self._member(artifact, version, batch, scores, examples)
                self._pool.add(member)
                self._put(self._node(member, at, item, "in the pool"))
            case ev.Provisional(version, artifact, item, batch, scores, examples, rival):
                member = self._member(artifact, version, batch, scores, examples, rival)
                self._pool.add(member)
                self._put(self._node(member, at, item, "provisional"))
            case ev.Confirmed(artifact, item, scores, examples):
                old = self._pool.members[artifact]
                member = self._member(artifact, old.version, old.batch, scores, examples)
                self._pool.confirm(member)
                self._put(self._node(member, self._nodes[artifact].at, item, "in the pool"))
            case ev.RolledBack(_, artifact, _, reason):
                self._pool.remove(artifact)
                self._put(replace(self._nodes[artifact], standing="rolled back", reason=reason))
                for node in list(self._nodes.values()):
                    if not node.from_gone and (gone := self._gone(node.parents)):
                        self._put(replace(node, from_gone=gone))
            case _:
                pass

    def _member(
        self, artifact: str, version: int, batch: int, scored: Mapping[str, float], examples: int, rival: str = ""
    ) -> Member:
        made = self._made[artifact]
        scores = {int(example): score for example, score in scored.items()}
        mean = sum(scores.values()) / len(scores) if scores else 0.0
        coverage = len(scores) / examples if examples else 0.0
        return Member(artifact, version, batch, made.parents, made.component, scores, mean, coverage, rival)

    def _node(self, member: Member, at: float, item: str, standing: Standing) -> Node:
        made, mean, coverage = self._made[member.id], member.mean, member.coverage
        gone = self._gone(made.parents)
        return Node(
            member.id, member.version, at, made.parents, made.origin, made.component, item, mean, coverage, standing, "", gone
        )

    def _gone(self, parents: tuple[str, ...]) -> str:
        """The rolled-back artifact that one with these parents descends from, or ""."""
        for node in (self._nodes[parent] for parent in parents if parent in self._nodes):
            if node.standing == "rolled back":
                return node.artifact
            if node.from_gone:
                return node.from_gone
        return ""

    def _put(self, node: Node) -> None:
        self._nodes[node.artifact] = node
        self._changed[node.artifact] = None

    def _front(self) -> dict[str, int]:
        return {artifact: mask.bit_count() for artifact, mask in self._pool.front().items()}

    def _best(self) -> str:
        best = self._pool.best()
        return best.id if best else ""
