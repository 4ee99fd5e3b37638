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
from flashevolve_lab.plots.gaps import GapsInfo, gaps_height, gaps_info, gaps_matplotlib, gaps_plotly
from flashevolve_lab.plots.rates import RatesInfo, rates_height, rates_info, rates_matplotlib, rates_plotly
from flashevolve_lab.plots.runtime import RuntimeInfo, runtime_info, runtime_matplotlib, runtime_plotly
from flashevolve_lab.plots.score import ScoreInfo, score_info, score_matplotlib, score_plotly
from flashevolve_lab.plots.stacked_gantt import (
    StackedGanttInfo,
    stacked_gantt_height,
    stacked_gantt_info,
    stacked_gantt_matplotlib,
    stacked_gantt_plotly,
)
from flashevolve_lab.views import (
    Progress,
    ProgressSnapshot,
    RuntimeSnapshot,
    StalenessFeed,
    StalenessSnapshot,
    Timeline,
    TimelineSnapshot,
)


class Figures:
    """What a run can be drawn as. ``entries``: gives the whole log when called; ``run``: the run's name."""

    def __init__(self, entries: Callable[[], Sequence[Entry]], run: str) -> None:
        self._entries = entries
        self._run = run

    def __repr__(self) -> str:
        return f"<Figures of {self._run}: score(x='seconds'), gantt(start=None, end=None), gaps(where='all'); each has .export(path)>"

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

    def gaps(self, where: str = "all") -> Figure[GapsInfo]:
        """How far behind stale work was when it was judged, and what was done about it; see `gaps_info`."""
        feed = StalenessFeed()
        feed.feed(self._entries())
        return gaps_figure({self._run: [feed.snapshot()]}, where)


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


def stacked_gantt_figure(
    runs: Mapping[str, TimelineSnapshot], start: float | None = None, end: float | None = None
) -> Figure[StackedGanttInfo]:
    """Gantts of several runs one above the other, on one time axis (label → timeline, from the top)."""
    info = stacked_gantt_info(runs, start, end)
    seqs = tuple((run.facts.run or label, run.seq) for label, run in runs.items())
    source = Source("gantt", seqs, {"start": start, "end": end, "labels": list(runs)})
    return Figure(info, stacked_gantt_plotly, stacked_gantt_matplotlib, source, height=stacked_gantt_height(info))


def gaps_figure(runs: Mapping[str, Sequence[StalenessSnapshot]], where: str = "all") -> Figure[GapsInfo]:
    """A gap figure; label → verdicts of one or several runs, a panel each."""
    info = gaps_info(runs, where)
    source = Source("gaps", _seqs(runs), {"where": where, "labels": _sizes(runs)})
    return Figure(info, gaps_plotly, gaps_matplotlib, source, height=gaps_height(info))


def rates_figure(
    runs: Mapping[str, Sequence[ProgressSnapshot]], per: str = "minute", *, proposals: bool = False
) -> Figure[RatesInfo]:
    """A rate figure; label → progress of one or several runs (seeds), a bar each."""
    info = rates_info(runs, per, proposals=proposals)
    seqs = tuple((run.facts.run or label, run.standing.seq) for label, group in runs.items() for run in group)
    source = Source("rates", seqs, {"per": per, "proposals": proposals, "labels": _sizes(runs)})
    return Figure(info, rates_plotly, rates_matplotlib, source, height=rates_height(info))


def runtime_figure(
    runs: Mapping[str, Sequence[RuntimeSnapshot]] | None = None,
    given: Mapping[str, float] | None = None,
    *,
    upto: int | None = None,
) -> Figure[RuntimeInfo]:
    """The runtime model of batched GEPA beside what runs show, or from ``given`` numbers alone; see `runtime_info`."""
    runs = runs or {}
    info = runtime_info(runs, given, upto=upto)
    source = Source("runtime", _seqs(runs), {"given": dict(given or {}), "model": info.given, "labels": _sizes(runs)})
    return Figure(info, runtime_plotly, runtime_matplotlib, source, height=3.2)


def _seqs(
    runs: Mapping[str, Sequence[StalenessSnapshot]] | Mapping[str, Sequence[RuntimeSnapshot]],
) -> tuple[tuple[str, int], ...]:
    return tuple((run.facts.run or label, run.seq) for label, group in runs.items() for run in group)


def _sizes(runs: Mapping[str, Sequence[object]]) -> dict[str, int]:
    """Label → how many runs it has: with the runs in order, a manifest says which run was whose."""
    return {label: len(group) for label, group in runs.items()}
