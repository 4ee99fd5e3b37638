"""The score figure: best validation score so far, as a step line, and every committed artifact as a dot, over time or cost.

Owns its info and its two drawings. One rule a change must keep: the line ends where the run's log ends, not at its
last commit, so a run that found nothing for an hour shows that hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots.canvas import in_short, label_below, matplotlib_empty, plotly_empty, plotly_frame
from flashevolve_lab.plots.palette import LineStyle, line_style
from flashevolve_lab.plots.words import escaped, plain, seconds_label, subtitle
from flashevolve_lab.views import Point, ProgressSnapshot, Standing

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

LABELS: Mapping[str, str] = {
    "seconds": "seconds",
    "metric_calls": "metric calls",
    "llm_calls": "model calls",
    "tokens": "tokens",
    "dollars": "dollars",
    "proposals": "proposals",
}
XS = tuple(LABELS)
Y_LABEL = "mean validation score"


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """One run. ``xs``, ``best``: corners of the step line (the value holds until the next x). ``dot_xs``, ``dots``: commits."""

    label: str
    xs: tuple[float, ...]
    best: tuple[float, ...]
    dot_xs: tuple[float, ...]
    dots: tuple[float, ...]
    artifacts: tuple[str, ...]
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScoreInfo:
    """All the figure shows. ``note``: the subtitle; ``empty``: a sentence when there is nothing to draw, else ""."""

    title: str
    note: str
    x_label: str
    lines: tuple[ScoreLine, ...]
    empty: str = ""


def score_info(runs: Mapping[str, ProgressSnapshot], x: str = "seconds") -> ScoreInfo:
    """The info of a score figure.

    Args:
        runs: Label → progress of a run; one line each, in this order.
        x: One of ``"seconds"``, ``"metric_calls"``, ``"llm_calls"``, ``"tokens"``, ``"dollars"``, ``"proposals"``.

    Raises:
        SetupError: another x.
    """
    if x not in XS:
        raise SetupError(f"x={x!r}: a score is drawn over one of {', '.join(XS)}")
    facts = [run.facts for run in runs.values()]
    lines = tuple(_line(label, run, x) for label, run in runs.items() if run.points)
    return ScoreInfo(
        title=f"Best score so far: {next(iter(runs))}" if len(runs) == 1 else "Best score so far",
        note=subtitle(facts),
        x_label=seconds_label(facts) if x == "seconds" else LABELS[x],
        lines=lines,
        empty="" if lines else "Nothing has been committed yet: the score begins with the first validated artifact.",
    )


def _line(label: str, run: ProgressSnapshot, x: str) -> ScoreLine:
    points = run.points
    now = max(_of_now(run.standing, x), _of_point(points[-1], x))
    dot_xs = tuple(_of_point(point, x) for point in points)
    return ScoreLine(
        label=label,
        xs=(*dot_xs, now),
        best=(*(point.best for point in points), points[-1].best),
        dot_xs=dot_xs,
        dots=tuple(point.mean for point in points),
        artifacts=tuple(point.artifact for point in points),
        versions=tuple(point.version for point in points),
    )


def _of_point(point: Point, x: str) -> float:
    return point.at if x == "seconds" else float(getattr(point, x))


def _of_now(standing: Standing, x: str) -> float:
    return standing.at if x == "seconds" else float(getattr(standing.spent, x))


# --- Plotly -----------------------------------------------------------------------------------------------------------


def score_plotly(info: ScoreInfo) -> Any:
    """The figure to look at: hover a dot for its artifact, a click on the legend hides a run."""
    figure = plotly_frame(info.title, info.note, info.x_label, 420)
    if info.empty:
        return plotly_empty(figure, info.empty)
    for i, line in enumerate(info.lines):
        figure.add_traces(_plotly_traces(line, line_style(i)))
    figure.update_yaxes(title={"text": Y_LABEL})
    figure.update_layout(showlegend=len(info.lines) > 1)
    return figure


def _plotly_traces(line: ScoreLine, style: LineStyle) -> list[Any]:
    import plotly.graph_objects as go

    label = escaped(line.label)
    named = {"name": label, "legendgroup": label}
    shape = {"color": style.colour, "width": 2, "dash": style.plotly_dash, "shape": "hv"}
    best = go.Scatter(x=line.xs, y=line.best, mode="lines", line=shape, hoverinfo="skip", **named)
    marker = {"color": style.colour, "size": 7, "symbol": style.plotly_marker, "opacity": 0.7}
    hover = f"<b>%{{text}}</b><br>mean %{{y:.4f}} at %{{x:,.6~g}}<extra>{label}</extra>"
    texts = [f"{escaped(a)} (v{v})" for a, v in zip(line.artifacts, line.versions, strict=True)]
    dots = go.Scatter(x=line.dot_xs, y=line.dots, mode="markers", marker=marker, text=texts, hovertemplate=hover, **named)
    dots.showlegend = False
    return [best, dots]


# --- matplotlib -------------------------------------------------------------------------------------------------------


def score_matplotlib(info: ScoreInfo, page: matplotlib.figure.Figure) -> None:
    """The figure to print, drawn into an empty page."""
    if info.empty:
        return matplotlib_empty(info.empty, page)
    axes = page.add_subplot()
    for i, line in enumerate(info.lines):
        _matplotlib_line(axes, line, line_style(i))
    label_below(axes, info.x_label, info.note)
    axes.set_ylabel(Y_LABEL)
    axes.set_xlim(left=0)
    axes.margins(x=0.02)
    axes.grid(axis="y", color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(in_short)
    if len(info.lines) > 1:
        page.legend(loc="outside upper left", handlelength=3.2, ncols=max(1, int(page.get_figwidth() / 2)))
    return None


def _matplotlib_line(axes: matplotlib.axes.Axes, line: ScoreLine, style: LineStyle) -> None:
    axes.step(
        line.xs,
        line.best,
        where="post",
        color=style.colour,
        linestyle=style.matplotlib_dash,
        linewidth=1.3,
        label=plain(line.label),
        solid_capstyle="butt",
    )
    axes.plot(
        line.dot_xs,
        line.dots,
        linestyle="none",
        marker=style.matplotlib_marker,
        markersize=3,
        color=style.colour,
        alpha=0.55,
        markeredgewidth=0,
        clip_on=False,
    )
