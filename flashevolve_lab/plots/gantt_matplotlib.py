"""The Gantt figure to print. Draws a `GanttInfo`, decides nothing about it.

One rule a change must keep: one collection for all bars of a lane that look alike, so that 10,000 jobs are drawn in a
second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flashevolve_lab.plots.canvas import label_below, matplotlib_empty, with_commas
from flashevolve_lab.plots.gantt import GanttInfo, labels
from flashevolve_lab.plots.palette import HATCHES, stage_colours
from flashevolve_lab.plots.words import plain
from flashevolve_lab.views import Mark

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    from matplotlib.artist import Artist

BAR_HEIGHT = 0.86
MANY_COMMITS = 80  # above, their lines are faint and only labelled ones have a head
FEW_BARS = 1_500  # up to here each bar has a fine white edge, so that neighbours can be told apart


def gantt_matplotlib(info: GanttInfo, page: matplotlib.figure.Figure) -> None:
    """Draw the figure into an empty page."""
    if info.empty:
        return matplotlib_empty(info.empty, page)
    axes = page.add_subplot()
    colours = stage_colours(info.stages)
    _draw_bars(axes, info, colours)
    _draw_marks(axes, info, 17 * (page.get_figwidth() - 0.7))
    axes.set_xlim(info.start, info.end)
    axes.set_ylim(info.bottom + 0.2, -0.7)
    axes.set_yticks([info.centre(stage) for stage in info.stages], [plain(stage, 24) for stage in info.stages])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    label_below(axes, info.x_label, info.note)
    axes.xaxis.set_major_formatter(with_commas)
    columns = max(1, int(page.get_figwidth() / 0.85))
    page.legend(handles=_legend(info, colours), loc="outside upper left", ncols=columns, handlelength=1.4, columnspacing=1.2)
    return None


def _draw_bars(axes: matplotlib.axes.Axes, info: GanttInfo, colours: dict[str, str]) -> None:
    alike: dict[tuple[str, float, str], list[tuple[float, float]]] = {}
    for bar in info.bars:
        alike.setdefault((bar.span.stage, bar.y, bar.span.outcome), []).append((bar.start, bar.seconds))
    edge = 0.3 if len(info.bars) <= FEW_BARS else 0.0
    for (stage, y, outcome), pieces in alike.items():
        hatch = HATCHES[outcome].matplotlib
        axes.broken_barh(
            pieces,
            (y - BAR_HEIGHT / 2, BAR_HEIGHT),
            facecolor=colours[stage],
            edgecolor="black" if hatch else "white",
            hatch=hatch or None,
            linewidth=edge,
        )


def _draw_marks(axes: matplotlib.axes.Axes, info: GanttInfo, letters: float) -> None:
    """Commits behind the bars, so that many do not hide them; changes in front. Heads and labels above the bars."""
    texts = labels(info, letters)
    commits = [mark for mark in info.marks if mark.kind == "commit"]
    changes = [mark for mark in info.marks if mark.kind != "commit"]
    dense = len(commits) > MANY_COMMITS
    for mark in commits:
        axes.axvline(mark.at, color="0.85" if dense else "0.55", linewidth=0.4, zorder=0.5)
    for mark in changes:
        axes.axvline(mark.at, color="black", linewidth=0.7, linestyle="--", zorder=3)
    _draw_heads(axes, [mark for mark in commits if not dense or mark.seq in texts], "v", texts)
    _draw_heads(axes, changes, "D", texts)


def _draw_heads(axes: matplotlib.axes.Axes, marks: list[Mark], marker: str, texts: Mapping[int, str]) -> None:
    if not marks:
        return  # an empty line counts as a point in the page's corner, and the layout would keep room for it
    transform = axes.get_xaxis_transform()
    look: dict[str, Any] = {"color": "0.25" if marker == "v" else "black", "transform": transform, "clip_on": False}
    axes.plot([mark.at for mark in marks], [1.01] * len(marks), linestyle="", marker=marker, markersize=2.5, **look)
    for mark in marks:
        if text := texts.get(mark.seq):
            axes.annotate(
                plain(text, 16),
                (mark.at, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=7,
            )


def _legend(info: GanttInfo, colours: dict[str, str]) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [Patch(facecolor=colours[stage], label=plain(stage, 24)) for stage in info.stages]
    for outcome in info.outcomes:
        hatch = HATCHES[outcome]
        handles.append(Patch(facecolor="0.8", edgecolor="black", linewidth=0, hatch=hatch.matplotlib, label=hatch.words))
    kinds = {mark.kind == "commit" for mark in info.marks}
    if True in kinds:
        handles.append(Line2D([], [], color="0.25", linewidth=0.6, marker="v", markersize=2.5, label="commit"))
    if False in kinds:
        handles.append(Line2D([], [], color="black", linewidth=0.8, linestyle="--", marker="D", markersize=2.5, label="change"))
    return handles
