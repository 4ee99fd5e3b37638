"""The pool of GEPA and its kin: committed artifacts, their validation scores, and the Pareto front, kept incrementally.

Owns who wins which validation instance. An instance is won by everyone who has its highest score; an artifact's wins are one
integer used as a bit mask, so that a front over 1,000 artifacts × 300 instances costs a few thousand machine words. One rule a
change must keep: `add` is the only writer, and everything derived is recomputed at most once a version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class Member:
    """A committed artifact: ``scores`` example → score (missing is not zero), ``mean`` over those, ``coverage`` in [0, 1]."""

    id: str
    version: int
    batch: int
    parents: tuple[str, ...]
    component: str
    scores: Mapping[int, float]
    mean: float
    coverage: float


class Population:
    """Committed artifacts in order of their version; the version is -1 while empty and 0 with the seed."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.order: list[Member] = []
        self._best: dict[int, float] = {}
        self._holders: dict[int, set[str]] = {}
        self._wins: dict[str, int] = {}
        self._front: dict[str, int] | None = None
        self._children: dict[str, list[Member]] = {}

    @property
    def version(self) -> int:
        """The number of the last commit."""
        return len(self.order) - 1

    def add(self, member: Member) -> None:
        """Commit a member: it becomes the next version."""
        self.members[member.id] = member
        self.order.append(member)
        for parent in member.parents:
            self._children.setdefault(parent, []).append(member)
        self._wins[member.id] = 0
        for example, score in member.scores.items():
            self._compare(member.id, example, score)
        self._front = None

    def _compare(self, id: str, example: int, score: float) -> None:
        best = self._best.get(example)
        bit = 1 << example
        if best is None or score > best:
            for loser in self._holders.get(example, ()):
                self._wins[loser] &= ~bit
            self._best[example] = score
            self._holders[example] = {id}
            self._wins[id] |= bit
        elif score == best:
            self._holders[example].add(id)
            self._wins[id] |= bit

    def wins(self, id: str) -> int:
        """Bit mask of the instances this artifact has the highest score on (before pruning)."""
        return self._wins.get(id, 0)

    def front(self) -> Mapping[str, int]:
        """The Pareto front: id → bit mask of instances won; dominated members are pruned.

        A member is dominated when each instance it wins is also won by another that remains; the weakest mean goes first (as in
        GEPA). One pass suffices: removing a member only ever takes cover away from others.
        """
        if self._front is None:
            self._front = self._prune()
        return self._front

    def _prune(self) -> dict[str, int]:
        candidates = [m for m in self.order if self._wins[m.id]]
        candidates.sort(key=lambda m: (m.mean, _lowest_bit(self._wins[m.id]), m.version))
        later = [0] * (len(candidates) + 1)
        for i in range(len(candidates) - 1, -1, -1):
            later[i] = later[i + 1] | self._wins[candidates[i].id]
        kept: dict[str, int] = {}
        covered = 0
        for i, member in enumerate(candidates):
            mask = self._wins[member.id]
            if mask & ~(covered | later[i + 1]):
                kept[member.id] = mask
                covered |= mask
        return dict(sorted(kept.items(), key=lambda pair: self.members[pair[0]].version))

    def choose(self, random: Random) -> str:
        """A front member, with probability proportional to the number of instances it wins."""
        front = self.front()
        return random.choices(list(front), [mask.bit_count() for mask in front.values()])[0]

    def best(self) -> Member | None:
        """The member with the highest mean (the earliest of equals), or None while empty."""
        return max(self.order, key=lambda m: (m.mean, -m.version), default=None)

    def children_since(self, parent: str, version: int, batch: int) -> list[Member]:
        """Children of ``parent`` committed after ``version`` by another batch than ``batch``."""
        return [m for m in self._children.get(parent, ()) if m.version > version and m.batch != batch]

    def gap(self, base: int, batch: int) -> int:
        """Commits since ``base``, those of the same batch not counted."""
        return sum(1 for m in self.order[base + 1 :] if m.batch != batch)


def _lowest_bit(mask: int) -> int:
    return (mask & -mask).bit_length()
