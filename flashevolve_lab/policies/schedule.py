"""When a new proposal may start. Pure judgements on a `Pace`; a schedule of your own is a frozen dataclass with these two members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from flashevolve_lab.core import Change, Load, Pace, Starts
from flashevolve_lab.errors import SetupError

LEAST, MOST = 4, 256  # bounds of a depth that is found
BUSY, FULL = 0.95, 0.98  # share of its calls in flight, between which a server is busy, and its depth not deeper than need be
AIM = 0.96  # the share a deeper step aims at
FAR = 0.9  # below this share one review is enough to go deeper
DEEPER, SHALLOWER = 2, 3  # reviews in a row that otherwise must agree: an idle server costs more than a few proposals too many
REACHED = 0.9  # share of the depth that has to be in flight for the depth to be what limits


@dataclass(frozen=True, slots=True)
class Sequential:
    """One proposal at a time: synchronous GEPA."""

    @property
    def depth(self) -> int:
        """Always 1."""
        return 1

    def admits(self, pace: Pace) -> Starts:
        """One when nothing is in flight."""
        return Starts(1 if pace.in_flight == 0 else 0, together=True)


@dataclass(frozen=True, slots=True)
class Batched:
    """``p`` parents × ``n`` minibatches at once; the next batch starts when all have settled (arXiv 2610.36774).

    Args:
        p: Parents drawn from the front at the start of a batch (with replacement), ≥ 1.
        n: Proposals on each, each with its own minibatch, ≥ 1.
    """

    p: int = 2
    n: int = 2

    def __post_init__(self) -> None:
        for name in ("p", "n"):
            _at_least_one(f"Batched({name}=…)", getattr(self, name))

    @property
    def depth(self) -> int:
        """p × n."""
        return self.p * self.n

    def admits(self, pace: Pace) -> Starts:
        """The whole batch when nothing is in flight."""
        return Starts(self.depth if pace.in_flight == 0 else 0, per_parent=self.n, together=True)


@dataclass(frozen=True, slots=True)
class Pipelined:
    """Up to ``depth`` proposals in flight, each started as soon as there is room: FlashEvolve (arXiv 2605.08520).

    With ``"auto"`` the depth in force is the smallest that keeps the server busy, found in the run: a deeper pipeline starts its
    proposals from an older front, so at equal calls depth costs quality. It begins at a quarter of the calls
    that the gateway may have in flight; what counts is the time average
    of the calls in flight, as a share of what the gateway may send, so that a burst of validations is not taken for a busy server.

    Args:
        depth: Proposals in flight, ≥ 1, or ``"auto"``.
        least, most: Bounds of the depth that ``"auto"`` finds, 1 ≤ least ≤ most. They mean nothing beside a number.
    """

    depth: int | Literal["auto"] = 16
    least: int = LEAST
    most: int = MOST

    def __post_init__(self) -> None:
        if self.depth != "auto":
            _at_least_one("Pipelined(depth), which may also be 'auto'", self.depth)
            object.__setattr__(self, "least", LEAST)
            object.__setattr__(self, "most", MOST)
        _at_least_one("Pipelined(least=…)", self.least)
        _at_least_one("Pipelined(most=…)", self.most)
        if self.least > self.most:
            raise SetupError(f"Pipelined: expected least ≤ most; got least={self.least}, most={self.most}")

    @property
    def unsaid(self) -> tuple[str, ...]:
        """Fields that mean nothing here, and that its description leaves out."""
        return () if self.depth == "auto" else ("least", "most")

    def admits(self, pace: Pace) -> Starts:
        """As many as are missing (with ``"auto"`` to the most there may ever be: the depth in force bounds them)."""
        most = self.most if self.depth == "auto" else self.depth
        return Starts(max(0, most - pace.in_flight))

    def review(self, load: Load) -> Sequence[Change]:
        """Deeper while the server has room and the depth is what leaves it; shallower while it never has any.

        The load grows less than in proportion to the depth near saturation, so a step by the square of what is missing comes
        close at once and does not overshoot; at most it doubles.
        """
        busy, depth = load.server.lately, load.depth
        if busy < BUSY and depth < self.most and load.in_flight >= REACHED * depth:
            wanted = ceil(depth * min(2.0, (AIM / max(busy, 1e-3)) ** 2))
            why = f"{busy:.0%} of the calls the server may have were in flight: it has room for more"
            return [Change("depth", min(self.most, max(self.least, depth + 1, wanted)), why, 1 if busy < FAR else DEEPER, 1)]
        if busy > FULL and depth > self.least:
            why = f"{busy:.1%} of the calls the server may have were in flight: fewer proposals keep it as busy, and are fresher"
            return [Change("depth", min(self.most, max(self.least, depth - max(1, depth // 8))), why, SHALLOWER, 1)]
        return ()


def _at_least_one(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SetupError(f"{what}: expected an integer of at least 1; got {value!r}")


SCHEDULES = {"Sequential": Sequential, "Batched": Batched, "Pipelined": Pipelined}
