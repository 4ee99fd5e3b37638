"""When a partial result may go on, and when a hopeless one may stop.

Pure judgements on a `Partial`, each with a reason in words (FlashEvolve, arXiv 2605.08520 §4). A policy of your own is a frozen
dataclass with ``judge(partial) -> Ruling``; it works from a notebook cell at once. Nothing speculative is ever final: what is
released keeps running, and what is inserted before its time is confirmed or rolled back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Literal

from flashevolve_lab.core import Partial, Ruling
from flashevolve_lab.errors import SetupError

WAIT = Ruling("wait")


@dataclass(frozen=True, slots=True)
class Complete:
    """Wait for the whole result; optionally stop what is proven unable to win.

    Args:
        proven: ``""``: never stop. ``"front"``: stop a validation that can neither become the best nor be better than the whole
            pool on any example (selection loses nothing but a twin), and a gate that cannot pass. ``"parent"``: stop a validation
            whose mean can no longer exceed its parent's as well. Both are bounds, not estimates, and never enter a score.
    """

    proven: Literal["", "front", "parent"] = ""

    def __post_init__(self) -> None:
        _check_proven("Complete", self.proven)

    @property
    def whole(self) -> bool:
        """Whether nothing is judged before it is complete."""
        return not self.proven

    @property
    def prefix(self) -> float:
        """1: no example is scored before the others."""
        return 1.0

    @property
    def rounds(self) -> int:
        """Without a prefix, none."""
        return 0

    def judge(self, partial: Partial) -> Ruling:
        """Stop what cannot win; else wait."""
        return proven(partial, self.proven)


@dataclass(frozen=True, slots=True)
class Speculative:
    """Let partial results go on (speculative stage completion).

    Args:
        rollout: Share α of a minibatch, rounded to whole samples, after which the proposal starts, in (0, 1]; the late samples are still recorded and used. It
            waits for all as long as everything scored is perfect: there would be nothing to learn from.
        validation: Share of the validation set scored first, in (0, 1]; 1 speculates on nothing. Once it is in, a child whose mean
            on everything scored so far exceeds that of ``above`` on the same examples joins the pool provisionally.
        above: ``"parent"`` or ``"best"``.
        rounds: An example that this many artifacts in a row have passed leaves the prefix, ≥ 1 (w in the paper).
        proven: as in `Complete`; an inserted artifact is never stopped.
    """

    rollout: float = 0.5
    validation: float = 0.25
    above: Literal["parent", "best"] = "parent"
    rounds: int = 3
    proven: Literal["", "front", "parent"] = "front"

    def __post_init__(self) -> None:
        for name in ("rollout", "validation"):
            share = getattr(self, name)
            if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0.0 < share <= 1.0:
                raise SetupError(f"Speculative({name}=…): expected a share in (0, 1]; got {share!r}")
        if self.above not in ("parent", "best"):
            raise SetupError(f"Speculative(above=…): expected 'parent' or 'best'; got {self.above!r}")
        if not isinstance(self.rounds, int) or isinstance(self.rounds, bool) or self.rounds < 1:
            raise SetupError(f"Speculative(rounds=…): expected an integer of at least 1; got {self.rounds!r}")
        _check_proven("Speculative", self.proven)

    @property
    def whole(self) -> bool:
        """Never: it looks at every partial result."""
        return False

    @property
    def prefix(self) -> float:
        """Share of the validation set scored first."""
        return float(self.validation)

    def judge(self, partial: Partial) -> Ruling:
        """Release a rollout, insert a promising child, stop a hopeless one; else wait."""
        if partial.stage == "rollout":
            return self._rollout(partial)
        if partial.stage == "validate" and not partial.provisional and (promise := self._promise(partial)):
            return Ruling("insert", promise, self.above)
        return proven(partial, self.proven)

    def _rollout(self, partial: Partial) -> Ruling:
        if partial.scored < max(1, floor(self.rollout * partial.wanted + 0.5)) or partial.flawless:
            return WAIT
        return Ruling("release", f"{partial.scored} of {partial.wanted} samples are in (α {self.rollout:g})")

    def _promise(self, partial: Partial) -> str:
        """Why it may join before its time, or ""."""
        bar = partial.parent_so_far if self.above == "parent" else partial.best_so_far
        if not partial.prefix_wanted or partial.prefix < partial.prefix_wanted or partial.score <= bar:
            return ""
        share = f"{partial.scored} of {partial.wanted} examples, its prefix of {partial.prefix} among them"
        return f"{partial.score:.3f} on {share}, above the {bar:.3f} of the {self.above} there"


def proven(partial: Partial, bar: str) -> Ruling:
    """Stop what can no longer win, by a bound that holds whatever the unscored examples turn out to be."""
    if not bar or partial.stage == "rollout" or partial.provisional:
        return WAIT
    so_far = f"after {partial.scored} of {partial.wanted} it can reach {partial.reach:.3f} at most"
    if partial.stage == "gate":
        if partial.reach <= partial.bar:
            return Ruling("stop", f"{so_far}, not above its parent's {partial.bar:.3f}")
        return WAIT
    if bar == "parent" and partial.reach <= partial.parent:
        return Ruling("stop", f"{so_far}, not above its parent's {partial.parent:.3f}")
    if partial.reach <= partial.bar and not partial.alone:
        return Ruling("stop", f"{so_far}, not above the best's {partial.bar:.3f}, and better than the whole pool on no example")
    return WAIT


def _check_proven(policy: str, value: object) -> None:
    if value not in ("", "front", "parent"):
        raise SetupError(f"{policy}(proven=…): expected '', 'front' or 'parent'; got {value!r}")


COMPLETION = {"Complete": Complete, "Speculative": Speculative}
