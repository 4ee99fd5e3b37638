"""The pool of GEPA and its kin: its artifacts, their validation scores, and the Pareto front, kept incrementally.

Owns who wins which validation instance. An instance is won by everyone who has its highest score; an artifact's wins are one
integer used as a bit mask, so that a front over 1,000 artifacts × 300 instances costs a few thousand machine words. One rule a
change must keep: `add`, `confirm` and `remove` are the only writers, and the front is recomputed at most once for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class Member:
    """An artifact of the pool: ``scores`` example → score (missing is not zero), ``mean`` over those, ``coverage`` in [0, 1].

    ``rival``: set while it is provisional, that is scored on a part of the validation set only: the artifact whose mean it has to
    exceed on the whole of it.
    """

    id: str
    version: int
    batch: int
    parents: tuple[str, ...]
    component: str
    scores: Mapping[int, float]
    mean: float
    coverage: float
    rival: str = ""


class Population:
    """Artifacts in order of the version they joined at; the version is -1 while empty and 0 with the seed."""

    def __init__(self) -> None:
        self.version = -1  # the number of the last change
        self.members: dict[str, Member] = {}
        self.order: list[Member] = []
        self._best: dict[int, float] = {}
        self._holders: dict[int, set[str]] = {}
        self._wins: dict[str, int] = {}
        self._front: dict[str, int] | None = None
        self._children: dict[str, list[Member]] = {}
        self._batches: list[int] = []  # the batch that each version came from; -1: a roll-back

    def add(self, member: Member) -> None:
        """A member joins: the next version."""
        self.version += 1
        self._batches.append(member.batch)
        self.members[member.id] = member
        self.order.append(member)
        for parent in member.parents:
            self._children.setdefault(parent, []).append(member)
        self._wins[member.id] = 0
        for example, score in member.scores.items():
            self._compare(member.id, example, score)
        self._front = None

    def confirm(self, member: Member) -> None:
        """A provisional member is fully scored now: the same version, more scores."""
        old = self.members[member.id]
        self.members[member.id] = member
        self.order[self.order.index(old)] = member
        for parent in member.parents:
            siblings = self._children[parent]
            siblings[siblings.index(old)] = member
        for example, score in member.scores.items():
            self._compare(member.id, example, score)
        self._front = None

    def remove(self, id: str) -> None:
        """A provisional member is rolled back: the next version."""
        self.version += 1
        self._batches.append(-1)
        member = self.members.pop(id)
        self.order.remove(member)
        del self._wins[id]
        for parent in member.parents:
            self._children[parent].remove(member)
        for example in member.scores:
            self._vacate(id, example)
        self._front = None

    def _vacate(self, id: str, example: int) -> None:
        """Who wins an instance once this artifact is gone."""
        self._holders[example].discard(id)
        if self._holders[example]:
            return
        del self._best[example], self._holders[example]
        for other in self.order:
            if example in other.scores:
                self._compare(other.id, example, other.scores[example])

    def top(self, example: int) -> float | None:
        """The highest score on an instance of all that is there to stay, or None: what is provisional may be rolled back."""
        if all(self.members[id].rival for id in self._holders.get(example, ())):
            return max((m.scores[example] for m in self.order if not m.rival and example in m.scores), default=None)
        return self._best[example]

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
        """The member with the highest mean (the earliest of equals), or None while empty. Never a provisional one."""
        return max((m for m in self.order if not m.rival), key=lambda m: (m.mean, -m.version), default=None)

    def children_since(self, parent: str, version: int, batch: int) -> list[Member]:
        """Children of ``parent`` that joined after ``version`` by another batch than ``batch``."""
        return [m for m in self._children.get(parent, ()) if m.version > version and m.batch != batch]

    def gap(self, base: int, batch: int) -> int:
        """Changes since ``base``, those of the same batch not counted."""
        return sum(1 for other in self._batches[base + 1 :] if other != batch)


def _lowest_bit(mask: int) -> int:
    return (mask & -mask).bit_length()
