"""Several runs' Gantts one above the other on one time axis: the synchronous run above the asynchronous one.

Owns the stacking: one window, one scale of time, one height of lane, stage colours once. Owns no bar and no mark (`gantt`,
`gantt_plotly`, `gantt_matplotlib`). One rule a change must keep: a second is as wide, and a worker slot as high, in every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots.canvas import label_below, matplotlib_empty, plotly_empty, plotly_frame, with_commas
from flashevolve_lab.plots.gantt import GanttInfo, gantt_info
from flashevolve_lab.plots.gantt_matplotlib import draw_lanes, draw_legend
from flashevolve_lab.plots.gantt_plotly import LANE_PIXELS, gantt_traces, lanes_axis
from flashevolve_lab.plots.palette import stage_colours
from flashevolve_lab.plots.words import escaped, plain, seconds_label, subtitle
from flashevolve_lab.views import TimelineSnapshot

if TYPE_CHECKING:
    import matplotlib.figure

HEAD = 3.8  # lanes that a panel's name and its version labels take above it (Plotly)
MOST_PIXELS = 1_400


@dataclass(frozen=True, slots=True)
class GanttPanel:
    """One run: its label, how far it came in the window, and its Gantt."""

    label: str
    reached: str
    gantt: GanttInfo


@dataclass(frozen=True, slots=True)
class StackedGanttInfo:
    """All the figure shows; ``panels`` from the top, all with the window from ``start`` to ``end`` (s)."""

    title: str
    note: str
    x_label: str
    start: float
    end: float
    panels: tuple[GanttPanel, ...]
    empty: str = ""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages of all runs, in the order of the run that has most."""
        fullest = sorted(self.panels, key=lambda panel: -len(panel.gantt.stages))
        return tuple(dict.fromkeys(stage for panel in fullest for stage in panel.gantt.stages))


def stacked_gantt_info(
    runs: Mapping[str, TimelineSnapshot], start: float | None = None, end: float | None = None
) -> StackedGanttInfo:
    """The info of a stacked Gantt figure.

    Args:
        runs: Label → timeline of a run, from the top.
        start, end: The window in seconds, for all; by default from 0 to the end of the longest run.

    Raises:
        SetupError: no run, or the window is empty.
    """
    if not runs:
        raise SetupError("gantt: expected at least one run")
    longest = max((run.at for run in runs.values()), default=0.0)
    first, last = start or 0.0, max(longest, 1e-9) if end is None else end
    if not first < last:
        raise SetupError(f"gantt(start={first:g}, end={last:g}): expected start < end; the longest run is {longest:g} s long")
    panels = tuple(_panel(label, run, first, last) for label, run in runs.items())
    facts = [run.facts for run in runs.values()]
    return StackedGanttInfo(
        title=f"Timelines: {', '.join(runs)}",
        note=subtitle(facts),
        x_label=seconds_label(facts),
        start=first,
        end=last,
        panels=panels,
        empty="" if any(panel.gantt.bars for panel in panels) else panels[0].gantt.empty,
    )


def _panel(label: str, run: TimelineSnapshot, first: float, last: float) -> GanttPanel:
    info = gantt_info(run, first, last, run=label)
    versions = [mark.version for mark in run.marks if mark.version is not None and mark.at <= last]
    until = min(last, run.at)
    when = f"ended at {run.at:,.4g} s" if run.status == "stopped" and run.at < last else f"after {until:,.4g} s"
    return GanttPanel(label, f"v{max(versions)} {when}" if versions else f"no version {when}", info)


def stacked_gantt_height(info: StackedGanttInfo) -> float:
    """A height in inches that gives every lane room, between 1.8 and 8."""
    return min(8.0, max(1.8, 0.9 + sum(0.35 + 0.1 * (panel.gantt.bottom + 0.5) for panel in info.panels)))


# --- Plotly -----------------------------------------------------------------------------------------------------------


def stacked_gantt_plotly(info: StackedGanttInfo) -> Any:
    """The figure to look at: zooming in time zooms every run, a click on the legend hides a stage in all."""
    rooms = [panel.gantt.bottom + HEAD for panel in info.panels]
    pixels = min(MOST_PIXELS, LANE_PIXELS * sum(rooms))
    figure = plotly_frame(info.title, info.note, info.x_label, int(max(320, 190 + pixels)))
    if info.empty:
        return plotly_empty(figure, info.empty)
    colours, named = stage_colours(info.stages), set[str]()
    top = 1.0
    for i, (panel, room) in enumerate(zip(info.panels, rooms, strict=True)):
        traces = gantt_traces(panel.gantt, colours)
        for trace in traces:
            trace.yaxis = _axis("y", i)
            if trace.showlegend is not False:
                trace.showlegend = trace.name not in named
                named.add(trace.name)
        figure.add_traces(traces)
        below = max(0.0, top - room / sum(rooms))
        lanes = top - (top - below) * (HEAD - 1.6) / room
        figure.update_layout({_axis("yaxis", i): {**lanes_axis(panel.gantt), "domain": [below, lanes], "zeroline": False}})
        _plotly_name(figure, panel, top)
        top = below
    figure.update_xaxes(range=[info.start, info.end], showgrid=True, anchor=_axis("y", len(info.panels) - 1))
    figure.update_layout(barmode="overlay", bargap=0, hovermode="closest", dragmode="zoom")
    return figure


def _axis(name: str, i: int) -> str:
    return name if i == 0 else f"{name}{i + 1}"


def _plotly_name(figure: Any, panel: GanttPanel, top: float) -> None:
    words = f"<b>{escaped(panel.label, 60)}</b>  {escaped(panel.reached)}"
    if panel.gantt.empty:
        words += f"  {escaped(panel.gantt.empty)}"
    figure.add_annotation(text=words, xref="paper", x=0, xanchor="left", yref="paper", y=top, yanchor="top", showarrow=False)


# --- matplotlib -------------------------------------------------------------------------------------------------------


def stacked_gantt_matplotlib(info: StackedGanttInfo, page: matplotlib.figure.Figure) -> None:
    """The figure to print, drawn into an empty page."""
    if info.empty:
        return matplotlib_empty(info.empty, page)
    colours = stage_colours(info.stages)
    ratios = [panel.gantt.bottom + 0.9 for panel in info.panels]  # what `draw_lanes` shows: one lane is as high everywhere
    rows: Any = page.subplots(len(info.panels), 1, sharex=True, squeeze=False, height_ratios=ratios)
    for i, (panel, (axes,)) in enumerate(zip(info.panels, rows, strict=True)):
        draw_lanes(axes, panel.gantt, colours)
        axes.set_title(f"{plain(panel.label, 40)}: {panel.reached}", loc="left", pad=13)
        if panel.gantt.empty:
            axes.text(0.5, 0.5, plain(panel.gantt.empty), ha="center", va="center", fontsize=7, transform=axes.transAxes)
        if i < len(info.panels) - 1:
            axes.spines["bottom"].set_visible(False)
            axes.tick_params(axis="x", length=0)
    label_below(axes, info.x_label, info.note)
    axes.xaxis.set_major_formatter(with_commas)
    draw_legend(page, [panel.gantt for panel in info.panels], colours)
    return None
