"""The gap figure: how far behind stale work was when it was judged, and what was done about it.

Owns its info and its two drawings. One rule a change must keep: every verdict is in exactly one bar, as it was recorded; an
item judged twice (before validation and at commit) is two verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots.canvas import label_below, matplotlib_empty, plotly_empty, plotly_frame
from flashevolve_lab.plots.palette import ACTION_STYLES, EDGE, GRID, NEUTRAL, OTHER_ACTION, ActionStyle
from flashevolve_lab.plots.words import escaped, plain, subtitle
from flashevolve_lab.views import ACTIONS, StalenessSnapshot

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

MOST_BARS = 30  # beyond, several gaps share a bar
NONE_STALE = "No work went stale"
PLACES: Mapping[str, str] = {
    "all": "",
    "dequeue": "before validation",
    "commit": "at commit",
    "hand": "by hand",
}


@dataclass(frozen=True, slots=True)
class GapPanel:
    """One run, or the runs of one label together.

    Attributes:
        label, runs: Whose verdicts, and of how many runs.
        total: Verdicts. ``counts``: action → verdicts in each bar.
        note: How many, and where the middle lies; or that nothing went stale.
    """

    label: str
    runs: int
    total: int
    counts: Mapping[str, tuple[int, ...]]
    note: str

    def heights(self, action: str, share: bool) -> tuple[float, ...]:
        """A bar's height for every bin: verdicts, or percent of the panel's."""
        scale = 100 / self.total if share and self.total else 1.0
        return tuple(count * scale for count in self.counts[action])


@dataclass(frozen=True, slots=True)
class GapsInfo:
    """All the figure shows.

    Attributes:
        title, note: Headline and subtitle. ``x_label``, ``y_label``: of the axes.
        starts: The lowest gap of each bar; a bar covers ``width`` gaps.
        actions: Those that occur, in the order they are stacked.
        share: Heights are percent of a panel's verdicts (several panels) rather than verdicts.
        panels: From the top. ``empty``: a sentence when there is nothing to draw, else "".
    """

    title: str
    note: str
    x_label: str
    y_label: str
    starts: tuple[int, ...]
    width: int
    actions: tuple[str, ...]
    share: bool
    panels: tuple[GapPanel, ...]
    empty: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The gaps of each bar in words: ``3``, or ``4–7``."""
        if self.width == 1:
            return tuple(str(start) for start in self.starts)
        return tuple(f"{start}–{start + self.width - 1}" for start in self.starts)

    @property
    def top(self) -> float:
        """The height of the highest stack of all panels."""
        stacks = [sum(panel.heights(action, self.share)[i] for action in self.actions)
                  for panel in self.panels for i in range(len(self.starts))]  # fmt: skip
        return max(stacks, default=0.0)


def gaps_info(runs: Mapping[str, Sequence[StalenessSnapshot]], where: str = "all") -> GapsInfo:
    """The info of a gap figure.

    Args:
        runs: Label → verdicts of one or several runs (seeds); one panel each, in this order.
        where: ``"dequeue"`` (judged before validation), ``"commit"``, ``"hand"``, or ``"all"``.

    Raises:
        SetupError: another place.
    """
    if where not in PLACES:
        raise SetupError(f"gaps(where={where!r}): verdicts fall at one of {', '.join(PLACES)}")
    found = {label: _verdicts(snapshots, where) for label, snapshots in runs.items()}
    gaps = sorted({gap for verdicts in found.values() for _, gap in verdicts})
    present = {action for verdicts in found.values() for action, _ in verdicts}
    actions = tuple(action for action in (*ACTIONS, *sorted(present - set(ACTIONS))) if action in present)
    first, last = (gaps[0], gaps[-1]) if gaps else (0, 0)
    width = -(-(last - first + 1) // MOST_BARS)
    starts = tuple(range(first, last + 1, width))
    share = len(runs) > 1
    facts = [snapshot.facts for snapshots in runs.values() for snapshot in snapshots]
    place = f" {PLACES[where]}" if PLACES[where] else ""
    return GapsInfo(
        title=f"Version gaps of stale work{place}" + (f": {next(iter(runs))}" if len(runs) == 1 else ""),
        note=subtitle(facts),
        x_label="version gap Δ (commits since the base version)",
        y_label=f"verdicts{place} (%)" if share else f"verdicts{place}",
        starts=starts,
        width=width,
        actions=actions,
        share=share,
        panels=tuple(_panel(label, len(runs[label]), found[label], actions, starts, width) for label in runs),
        empty="" if gaps else _why_empty(runs, place),
    )


def _verdicts(snapshots: Sequence[StalenessSnapshot], where: str) -> list[tuple[str, int]]:
    return [(row.action, row.gap) for snapshot in snapshots for row in snapshot.rows if where in ("all", row.where)]


def _why_empty(runs: Mapping[str, Sequence[StalenessSnapshot]], place: str) -> str:
    begun = any(snapshot.seq for snapshots in runs.values() for snapshot in snapshots)
    if not begun:
        return "Nothing has been judged yet: a verdict falls when work is behind the pool's version."
    return f"{NONE_STALE}: no verdict has fallen{place}. One proposal at a time is never behind the pool's version."


def _panel(
    label: str, runs: int, verdicts: list[tuple[str, int]], actions: tuple[str, ...], starts: tuple[int, ...], width: int
) -> GapPanel:
    counted = Counter((action, (gap - starts[0]) // width) for action, gap in verdicts)
    counts = {action: tuple(counted[action, i] for i in range(len(starts))) for action in actions}
    return GapPanel(label, runs, len(verdicts), counts, _note(sorted(gap for _, gap in verdicts), runs))


def _note(gaps: list[int], runs: int) -> str:
    of = f" of {runs} runs" if runs > 1 else ""
    if not gaps:
        return f"{NONE_STALE}{of and f' in {runs} runs'}"
    middle, most = gaps[(len(gaps) - 1) // 2], gaps[-(-9 * len(gaps) // 10) - 1]
    return f"n = {len(gaps):,}{of}, median {middle}, 90% ≤ {most}"


def gaps_height(info: GapsInfo) -> float:
    """A height in inches that gives every panel room, at most 8."""
    return min(8.0, 1.2 + (1.2 if len(info.panels) == 1 else 0.85) * max(1, len(info.panels)))


def action_style(action: str) -> ActionStyle:
    """How an action is drawn; one without a style of its own is grey."""
    return ACTION_STYLES.get(action, OTHER_ACTION)


# --- Plotly -----------------------------------------------------------------------------------------------------------


def gaps_plotly(info: GapsInfo) -> Any:
    """The figure to look at: a panel below the other on one axis of gaps, hover a bar for its verdicts."""
    figure = plotly_frame(info.title, info.note, info.x_label, 200 + 150 * max(1, len(info.panels)))
    if info.empty:
        return plotly_empty(figure, info.empty)
    for i, panel in enumerate(info.panels):
        figure.add_traces([_trace(info, panel, action, i) for action in info.actions])
        _plotly_axis(figure, info, panel, i)
    last = "" if len(info.panels) == 1 else str(len(info.panels))
    ticks = {"tickvals": list(info.starts), "ticktext": list(info.names)} if len(info.starts) <= 16 or info.width > 1 else {}
    figure.update_xaxes(anchor=f"y{last}", **ticks)
    figure.update_layout(barmode="stack", bargap=0.12, hovermode="closest", legend={"traceorder": "normal"})
    return figure


def _trace(info: GapsInfo, panel: GapPanel, action: str, i: int) -> Any:
    import plotly.graph_objects as go

    style, counts = action_style(action), panel.counts[action]
    texts = [
        f"<b>{escaped(action)}</b> at gap {name}<br>{count:,} of {panel.total:,} verdicts<br>{escaped(panel.label)}"
        for name, count in zip(info.names, counts, strict=True)
    ]
    pattern = {"shape": style.plotly, "fillmode": "overlay", "fgcolor": "#000000", "fgopacity": 0.8, "size": 6, "solidity": 0.2}
    return go.Bar(
        name=escaped(action),
        legendgroup=escaped(action),
        showlegend=i == 0,
        x=list(info.starts),
        y=list(panel.heights(action, info.share)),
        yaxis="y" if i == 0 else f"y{i + 1}",
        marker={"color": style.colour, "pattern": pattern, "line": {"color": EDGE, "width": 0.5}},
        hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _plotly_axis(figure: Any, info: GapsInfo, panel: GapPanel, i: int) -> None:
    number = "" if i == 0 else str(i + 1)
    room = 1 / len(info.panels)
    domain = [1 - (i + 1) * room, 1 - i * room - 0.16 * room]  # the panel's words stand above it
    middle = i == (len(info.panels) - 1) // 2
    axis = {
        "domain": domain, "range": [0, info.top * 1.05], "gridcolor": GRID, "zeroline": False, "linecolor": NEUTRAL,
        "title": {"text": escaped(info.y_label) if middle else ""},
    }  # fmt: skip
    figure.update_layout({f"yaxis{number}": axis})
    words = panel.note if len(info.panels) == 1 else f"<b>{escaped(panel.label, 60)}</b>  {escaped(panel.note)}"
    figure.add_annotation(
        text=words, xref="paper", x=1, xanchor="right", yref=f"y{number} domain", y=1, yanchor="bottom", showarrow=False
    )


# --- matplotlib -------------------------------------------------------------------------------------------------------


def gaps_matplotlib(info: GapsInfo, page: matplotlib.figure.Figure) -> None:
    """The figure to print, drawn into an empty page."""
    from matplotlib.patches import Patch

    if info.empty:
        return matplotlib_empty(info.empty, page)
    grid: Any = page.subplots(len(info.panels), 1, sharex=True, sharey=True, squeeze=False)
    rows: list[matplotlib.axes.Axes] = [row[0] for row in grid]
    for axes, panel in zip(rows, info.panels, strict=True):
        _print_panel(axes, info, panel)
    rows[0].set_ylim(0, info.top * (1.18 if len(info.panels) == 1 else 1.45))
    _print_ticks(rows[-1], info)
    label_below(rows[-1], info.x_label, info.note)
    rows[(len(rows) - 1) // 2].set_ylabel(info.y_label, y=0.5 * (len(rows) % 2))  # in the middle of all panels
    styles = {action: action_style(action) for action in info.actions}
    handles = [
        Patch(facecolor=style.colour, edgecolor="black", linewidth=0, hatch=style.matplotlib or None, label=plain(action, 24))
        for action, style in styles.items()
    ]
    page.legend(handles=handles, loc="outside upper left", ncols=4, handlelength=1.4, columnspacing=1.2)
    return None


def _print_panel(axes: matplotlib.axes.Axes, info: GapsInfo, panel: GapPanel) -> None:
    below = [0.0] * len(info.starts)
    for action in info.actions:
        style, heights = action_style(action), panel.heights(action, info.share)
        there = [i for i, height in enumerate(heights) if height]  # a bar of nothing would still draw its edge
        axes.bar(
            [info.starts[i] for i in there],
            [heights[i] for i in there],
            width=0.86 * info.width,
            bottom=[below[i] for i in there],
            color=style.colour,
            edgecolor="black",
            hatch=style.matplotlib or None,
            linewidth=0.3 if style.matplotlib else 0.0,
        )
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.grid(axis="y", color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the grid
    where: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "top", "fontsize": 7, "bbox": paper}
    words = panel.note if len(info.panels) == 1 else f"{plain(panel.label, 40)}\n{panel.note}"
    axes.text(1.0, 1.0, words, linespacing=1.3, **where)


def _print_ticks(axes: matplotlib.axes.Axes, info: GapsInfo) -> None:
    every = -(-len(info.starts) // (16 if info.width == 1 else 7))
    axes.set_xticks(info.starts[::every], info.names[::every])
    half = 0.6 * info.width
    axes.set_xlim(info.starts[0] - half, info.starts[-1] + half)
