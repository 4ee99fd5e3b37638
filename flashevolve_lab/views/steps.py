"""A number that changes now and then, kept as a step function of lab time: a queue's length, requests in flight.

Owns `Steps` (the collector), `StepLine` (its snapshot) and `StepChange` (what is new in it). One rule a change must
keep: several changes at the same instant leave only the last one, and no step repeats the value before it, so a line
is as short as it can be.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step function: from ``at[i]`` (s) on it is ``value[i]``. Times rise strictly; neighbouring values differ."""

    at: tuple[float, ...] = ()
    value: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepChange:
    """What to do to a copy of a line: cut it to its first ``start`` steps, then append these."""

    start: int
    at: tuple[float, ...]
    value: tuple[int, ...]


class Steps:
    """Collects a step function as it happens."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._value: list[int] = []
        self._kept = 0  # steps given out by `change` that still stand
        self._changed = False  # whether anything happened since the last `change`

    def put(self, at: float, value: int) -> None:
        """From ``at`` on the value is this one. Times must not fall."""
        if self._value and self._value[-1] == value:
            return
        if self._at and self._at[-1] == at:
            self._at.pop()
            self._value.pop()
            self._kept = min(self._kept, len(self._at))
        if not self._value or self._value[-1] != value:
            self._at.append(at)
            self._value.append(value)
        self._changed = True

    def line(self) -> StepLine:
        """The whole line so far."""
        return StepLine(tuple(self._at), tuple(self._value))

    def change(self) -> StepChange | None:
        """What happened since the last time this was asked, or None."""
        if not self._changed:
            return None
        start, self._kept, self._changed = self._kept, len(self._at), False
        return StepChange(start, tuple(self._at[start:]), tuple(self._value[start:]))
