"""The figures of a run: from its log to something to look at and to print.

Owns which figures there are. One rule a change must keep: a figure is made from the log as it is at the call, and
knows up to which entry that was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flashevolve_lab.core import Entry
from flashevolve_lab.plots.figure import Figure, Source
from flashevolve_lab.plots.gantt import GanttInfo, gantt_height, gantt_info
from flashevolve_lab.plots.gantt_matplotlib import gantt_matplotlib
from flashevolve_lab.plots.gantt_plotly import gantt_plotly
from flashevolve_lab.plots.score import ScoreInfo, score_info, score_matplotlib, score_plotly
from flashevolve_lab.views import Progress, ProgressSnapshot, Timeline, TimelineSnapshot


class Figures:
    """What a run can be drawn as. ``entries``: gives the whole log when called; ``run``: the run's name."""

    def __init__(self, entries: Callable[[], Sequence[Entry]], run: str) -> None:
        self._entries = entries
        self._run = run

    def __repr__(self) -> str:
        return f"<Figures of {self._run}: score(x='seconds'), gantt(start=None, end=None); each has .export(path)>"

    def score(self, x: str = "seconds") -> Figure[ScoreInfo]:
        """The best validation score so far and every commit, over time or cost; see `score_info`."""
        progress = Progress()
        progress.feed(self._entries())
        return score_figure({self._run: progress.snapshot()}, x)

    def gantt(self, start: float | None = None, end: float | None = None) -> Figure[GanttInfo]:
        """Every job in its worker slot, from ``start`` to ``end`` seconds; see `gantt_info`."""
        timeline = Timeline()
        timeline.feed(self._entries())
        return gantt_figure(timeline.snapshot(), start, end, run=self._run)


def score_figure(runs: Mapping[str, ProgressSnapshot], x: str = "seconds") -> Figure[ScoreInfo]:
    """A score figure of one run or of several (label → progress)."""
    seqs = tuple((run.facts.run or label, run.standing.seq) for label, run in runs.items())
    source = Source("score", seqs, {"x": x, "labels": list(runs)})
    return Figure(
        score_info(runs, x), score_plotly, score_matplotlib, source, height=2.4 + 0.17 * (len(runs) if len(runs) > 1 else 0)
    )


def gantt_figure(
    snapshot: TimelineSnapshot, start: float | None = None, end: float | None = None, *, run: str = ""
) -> Figure[GanttInfo]:
    """A Gantt figure of one run."""
    info = gantt_info(snapshot, start, end, run=run)
    source = Source("gantt", ((snapshot.facts.run or run, snapshot.seq),), {"start": start, "end": end})
    return Figure(info, gantt_plotly, gantt_matplotlib, source, height=gantt_height(info))
