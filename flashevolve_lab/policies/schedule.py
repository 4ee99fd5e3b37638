"""When a new proposal may start. Pure judgements on a `Pace`; a schedule of your own is a frozen dataclass with these two members."""

from __future__ import annotations

from dataclasses import dataclass

from flashevolve_lab.core import Pace, Starts
from flashevolve_lab.errors import SetupError


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
    """Up to ``depth`` proposals in flight, each started as soon as there is room: FlashEvolve (arXiv 2605.08520)."""

    depth: int = 16

    def __post_init__(self) -> None:
        _at_least_one("Pipelined(depth)", self.depth)

    def admits(self, pace: Pace) -> Starts:
        """As many as are missing."""
        return Starts(max(0, self.depth - pace.in_flight))


def _at_least_one(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SetupError(f"{what}: expected an integer of at least 1; got {value!r}")


SCHEDULES = {"Sequential": Sequential, "Batched": Batched, "Pipelined": Pipelined}
