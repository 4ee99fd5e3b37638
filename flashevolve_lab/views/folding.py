"""How a view keeps its place in the log.

Owns `Folding`: the state a view has reached and which entries are new to it. Owns nothing a view shows. One rule a
change must keep: a view sees every entry once and in order, however the log was cut into batches, so any chunking
gives the same snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flashevolve_lab.core import Entry, RunState, apply
from flashevolve_lab.errors import InvariantError


class Folding:
    """A view's place in the log: ``state`` is the run after the last entry the view has taken in."""

    def __init__(self) -> None:
        self.state = RunState()

    def __repr__(self) -> str:
        return f"<Folding at entry {self.state.seq}, {self.state.at:g} s>"

    def fresh(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries not seen before, in order; each must be `take`n before the next is asked for.

        Raises:
            InvariantError: entries are missing in between: a reader's cursor is wrong.
        """
        for entry in entries:
            if entry.seq <= self.state.seq:
                continue
            if entry.seq != self.state.seq + 1:
                raise InvariantError(f"entry {entry.seq} came after {self.state.seq}: feed a view every entry in order")
            yield entry

    def time(self, entry: Entry) -> float:
        """When the entry happened (s of lab time), never before the one ahead of it."""
        return max(self.state.at, entry.at)

    def take(self, entry: Entry) -> None:
        """Fold the entry into the state."""
        apply(self.state, entry)
