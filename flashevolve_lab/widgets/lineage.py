"""The lineage as a widget: the family of the pool's artifacts with its Pareto front; a click selects an artifact.

Owns what is sent. Owns no family (views) and no layout (`lineage.js`). One rule a change must keep: the browser gets a node when
it joins and once more whenever it changed (the last row of an artifact is the valid one), and the front anew whenever it changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashevolve_lab.core import Entry
from flashevolve_lab.views import Lineage, Node
from flashevolve_lab.widgets.mirror import HERE, Mirror, module_of
from flashevolve_lab.widgets.texts import sayable

NODE = ("artifact", "version", "at", "parents", "origin", "component", "mean", "coverage", "standing", "reason", "from_gone")  # as lineage.js reads them


class LineageTree(Mirror):
    """A live lineage. ``selected``: the artifact selected ("" for none), here or in the browser."""

    _esm = module_of("lineage")
    _css = (HERE / "overview.css").read_text(encoding="utf-8")

    def __init__(self) -> None:
        self._view = Lineage()
        super().__init__()

    def __repr__(self) -> str:
        family = self._view.snapshot()
        here = sum(node.standing != "rolled back" for node in family.nodes)
        return f"<LineageTree of {here} artifacts, {len(family.front)} on the front>"

    def take(self, entries: Sequence[Entry]) -> None:
        """Further entries of the log."""
        delta = self._view.feed(entries)
        self.push({"front": dict(delta.front), "best": delta.best}, [_row(node) for node in (*delta.changed, *delta.nodes)])

    def fail(self, message: str) -> None:
        """Show that this view has failed."""
        self.failed = sayable(message)


def _row(node: Node) -> list[object]:
    return [getattr(node, name) for name in NODE]
