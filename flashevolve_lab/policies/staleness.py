"""What to do with a stale item: accept, update, patch, or discard.

Pure judgements on a `StaleItem`, each with a reason in words. A policy of your own is a frozen dataclass with one method,
``judge(item) -> Verdict``; it works from a notebook cell at once. Anything that needs a model is a stage, never a policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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


@dataclass(frozen=True, slots=True)
class Reflective:
    """Let a model read what is stale and say what becomes of it (the paper's Reflective Async): action ``patch``.

    Args:
        min_gap: Gaps below this are accepted as they are, ≥ 1.
        untouched: Accept, at any gap, what there is nothing to reconcile with: nothing it was made from has changed (or, onto the
            best, it was made from the best).
        saturated: What to do instead when the server or the patch stage is full (``"update"``, ``"discard"``, or ``"patch"`` all
            the same).
        queue: Stale items that may wait for the patch stage, or be in it, before it counts as full, ≥ 1.
        onto: What a stale text is read against and patched onto: ``"counterpart"``, the version that stands in its parent's place
            (keeps lineages apart); ``"best"``, the best of the pool (unites them), also when nothing it was made from has changed.
        batch: Stale texts of the same component that one reply may judge, ≥ 1; those it patches are distilled into one text.
        busy: Calls in flight, as a share of their limit (0 … 1), above which the server counts as full; 1: never.

    The defaults are the best of those measured (simulated, three landscapes, 16 and 48 in flight, 8 seeds). The server is never
    full by default: a pipeline keeps it near its limit all the time, and there a patch pays most, since one call on four stale
    texts spares three validations.
    """

    min_gap: int = 1
    untouched: bool = True
    saturated: Literal["patch", "update", "discard"] = "update"
    queue: int = 64
    onto: Literal["counterpart", "best"] = "best"
    batch: int = 4
    busy: float = 1.0
    before: ClassVar[Mapping[str, Any]] = {"onto": "counterpart", "batch": 1}  # what logs that do not say it meant

    def __post_init__(self) -> None:
        for name in ("batch", "min_gap", "queue"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SetupError(f"Reflective({name}=…): expected an integer of at least 1; got {value!r}")
        if self.onto not in ("counterpart", "best"):
            raise SetupError(f"Reflective(onto=…): expected 'counterpart' or 'best'; got {self.onto!r}")
        if self.saturated not in ("patch", "update", "discard"):
            raise SetupError(f"Reflective(saturated=…): expected 'patch', 'update' or 'discard'; got {self.saturated!r}")
        if not isinstance(self.busy, (int, float)) or isinstance(self.busy, bool) or not 0 < self.busy <= 1:
            raise SetupError(f"Reflective(busy=…): expected a share in (0, 1]; got {self.busy!r}")

    def judge(self, item: StaleItem) -> Verdict:
        """By what has changed since, not by the gap alone; at commit, what is validated stands."""
        if item.where == "commit":
            return Verdict("accept", f"gap {item.gap}, but it is validated")
        if item.gap < self.min_gap:
            return Verdict("accept", f"gap {item.gap} is below {self.min_gap}")
        if self.untouched and (nothing := self._nothing_to_reconcile(item)):
            return Verdict("accept", f"gap {item.gap}, but {nothing}")
        if item.patching >= self.queue:
            return self._instead(item, f"{item.patching} others wait for the patch stage or are in it")
        if item.load > self.busy:
            return self._instead(item, f"the server is saturated: {item.load:.0%} of the calls it is given are in flight")
        against = f"the best, {item.best}, and" if self.onto == "best" else "its current counterpart and"
        return Verdict("patch", f"gap {item.gap}: a model reads it against {against} what was committed since", self.onto)

    def _nothing_to_reconcile(self, item: StaleItem) -> str:
        if self.onto == "best":
            return f"it was made from the best, {item.best}, itself" if item.parent and item.parent == item.best else ""
        return "" if item.touched or item.superseded else "nothing it was made from has changed"

    def _instead(self, item: StaleItem, why: str) -> Verdict:
        return Verdict(self.saturated, f"gap {item.gap}, and {why}", self.onto)


STALENESS = {"Full": Full, "Guarded": Guarded, "Reflective": Reflective}
