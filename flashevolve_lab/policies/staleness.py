"""What to do with a stale item: accept, update, (later) patch, or discard.

Pure judgements on a `StaleItem`, each with a reason in words. A policy of your own is a frozen dataclass with one method,
``judge(item) -> Verdict``; it works from a notebook cell at once. Anything that needs a model is a stage, never a policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flashevolve_lab.core import StaleItem, Verdict
from flashevolve_lab.errors import SetupError


@dataclass(frozen=True, slots=True)
class Full:
    """Accept everything (the paper's Full Async)."""

    def judge(self, item: StaleItem) -> Verdict:
        """Always accept."""
        return Verdict("accept", f"accepted at gap {item.gap}: Full accepts every gap")


@dataclass(frozen=True, slots=True)
class Guarded:
    """Accept up to ``max_gap`` versions behind; beyond that discard, or update once.

    Args:
        max_gap: Largest version gap accepted, ≥ 0. About 3 is usual at depth 16 (acceptance × proposals in flight), so the
            default leaves most work alone.
        beyond: ``"discard"``, or ``"update"``: graft the change onto the current counterpart and gate it again.
        paper: At commit, discard by the gap alone as in the paper; by default only what has been superseded.
    """

    max_gap: int = 8
    beyond: Literal["discard", "update"] = "discard"
    paper: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.max_gap, int) or isinstance(self.max_gap, bool) or self.max_gap < 0:
            raise SetupError(f"Guarded(max_gap=…): expected an integer of at least 0; got {self.max_gap!r}")
        if self.beyond not in ("discard", "update"):
            raise SetupError(f"Guarded(beyond=…): expected 'discard' or 'update'; got {self.beyond!r}")

    def judge(self, item: StaleItem) -> Verdict:
        """By the gap; at commit, what is validated is only discarded when superseded (or under the paper's rule)."""
        if item.gap <= self.max_gap:
            return Verdict("accept", f"gap {item.gap} is within {self.max_gap}")
        beyond = f"gap {item.gap} is beyond {self.max_gap}"
        if item.where == "commit":
            if self.paper or item.superseded:
                return Verdict("discard", beyond + (" and it was superseded" if item.superseded else ""))
            return Verdict("accept", f"{beyond}, but it is validated and nothing superseded it")
        return Verdict(self.beyond, beyond)


STALENESS = {"Full": Full, "Guarded": Guarded}
