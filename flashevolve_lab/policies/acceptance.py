"""When a child passes its gate: how it must compare with its parent on the same examples.

Pure judgements on a `Gate`, each with a reason in words. A policy of your own is a frozen dataclass with one method,
``judge(gate) -> Acceptance``; it works from a notebook cell at once. Scores of an earlier round are never forgotten: the sums are
over all rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from flashevolve_lab.core import Acceptance, Gate, strictly
from flashevolve_lab.errors import SetupError


@dataclass(frozen=True, slots=True)
class Strict:
    """The child's sum on the minibatch must be strictly above its parent's (GEPA's rule)."""

    def judge(self, gate: Gate) -> Acceptance:
        """Above, or not; sums are exact."""
        return strictly(gate)


@dataclass(frozen=True, slots=True)
class Tolerant:
    """The child may be worse than its parent by up to ``margin``, or (below 0) must be better by at least that much.

    A noisy score turns truly better children away: a tolerance lets them through, and leaves it to the validation set, which is
    larger, to tell. That costs a whole validation for each child that only looked as good. Below 0 it is the other way round.

    Args:
        margin: In summed score of the minibatch. 0 lets ties through (gepa's ``ImprovementOrEqualAcceptance``).
    """

    margin: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.margin, (int, float)) or isinstance(self.margin, bool) or not isfinite(self.margin):
            raise SetupError(f"Tolerant(margin=…): expected a finite number; got {self.margin!r}")

    def judge(self, gate: Gate) -> Acceptance:
        """By the difference of the sums."""
        gain = gate.child_sum - gate.parent_sum
        passed = gain >= -self.margin
        asked = f"at most {self.margin:g} below" if self.margin >= 0 else f"at least {-self.margin:g} above"
        return Acceptance(passed, f"{gate.child_sum:g} is {'' if passed else 'not '}{asked} {gate.parent_sum:g}")


@dataclass(frozen=True, slots=True)
class Repeated:
    """The gate is run up to ``times`` times, child and parent each time, and the sums over all rounds decide, strictly.

    Under noise one minibatch passes many children by luck, and each costs a whole validation: a second look is cheaper.

    Args:
        times: Rounds in all, at least 2.
        fresh: Further rounds are on examples that this gate has not seen; else both texts really run again on the same ones,
            whatever the cache knows (which tells nothing new where a model always answers the same).
        all: Also a child that is behind so far gets its further rounds; else only one that is ahead is looked at again.
    """

    times: int = 2
    fresh: bool = True
    all: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.times, int) or isinstance(self.times, bool) or not 2 <= self.times <= 8:
            raise SetupError(f"Repeated(times=…): expected an integer from 2 to 8; got {self.times!r}")

    def judge(self, gate: Gate) -> Acceptance:
        """Another round while there is doubt; then by the sums."""
        so_far = strictly(gate)
        if gate.rounds < self.times and (so_far.passed or self.all):
            return Acceptance(False, f"{so_far.reason}; round {gate.rounds} of {self.times}", again=True, fresh=self.fresh)
        return so_far


ACCEPTANCES = {"Strict": Strict, "Tolerant": Tolerant, "Repeated": Repeated}
