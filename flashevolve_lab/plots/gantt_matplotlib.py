"""The Gantt figure to print. Draws a `GanttInfo`, decides nothing about it.

One rule a change must keep: one collection for all bars of a lane that look alike, so that 10,000 jobs are drawn in a
second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flashevolve_lab.plots.canvas import label_below, matplotlib_empty, with_commas
from flashevolve_lab.plots.gantt import GanttInfo, labels, marks_of
from flashevolve_lab.plots.palette import EARLY, HATCHES, stage_colours
from flashevolve_lab.plots.words import plain
from flashevolve_lab.views import Mark

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    from matplotlib.artist import Artist

BAR_HEIGHT = 0.86
RAIL = 0.3  # height of the rail along what validates a provisional artifact
# at the end of a bar that was proven unable to win
PROVEN: Mapping[str, Any] = {"marker": "|", "markersize": 5, "markeredgewidth": 1.6, "color": "black"}
HEAD_POINTS = 1.8  # between the bars and the head of a mark
MANY_COMMITS = 80  # above, their lines are faint and only labelled ones have a head
FEW_BARS = 1_500  # up to here each bar has a fine white edge, so that neighbours can be told apart


def gantt_matplotlib(info: GanttInfo, page: matplotlib.figure.Figure) -> None:
    """Draw the figure into an empty page."""
    if info.empty:
        return matplotlib_empty(info.empty, page)
    axes = page.add_subplot()
    colours = stage_colours(info.stages)
    draw_lanes(axes, info, colours)
    label_below(axes, info.x_label, info.note)
    axes.xaxis.set_major_formatter(with_commas)
    draw_legend(page, [info], colours)
    return None


def draw_lanes(axes: matplotlib.axes.Axes, info: GanttInfo, colours: Mapping[str, str]) -> None:
    """Bars, marks and stage names of one run, into axes of its own."""
    page = axes.get_figure(root=True)
    _draw_bars(axes, info, colours)
    _draw_early(axes, info)
    _draw_marks(axes, info, 17 * ((page.get_figwidth() if page else 3.5) - 0.7))
    axes.set_xlim(info.start, info.end)
    axes.set_ylim(info.bottom + 0.2, -0.7)
    axes.set_yticks([info.centre(stage) for stage in info.stages], [plain(stage, 24) for stage in info.stages])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def draw_legend(page: matplotlib.figure.Figure, infos: Sequence[GanttInfo], colours: Mapping[str, str]) -> None:
    """What stages, hatches and lines mean, once for all runs on the page."""
    handles = _legend(infos, colours)
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, int(page.get_figwidth() / max(0.85, 0.4 + 0.062 * longest)))
    page.legend(handles=handles, loc="outside upper left", ncols=columns, handlelength=1.4, columnspacing=1.2)


def _draw_bars(axes: matplotlib.axes.Axes, info: GanttInfo, colours: Mapping[str, str]) -> None:
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


def _draw_early(axes: matplotlib.axes.Axes, info: GanttInfo) -> None:
    """Late samples pale and striped; a rail along what validates a provisional artifact, broken if that was rolled back."""
    alike: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for part in info.early:
        alike.setdefault((part.kind, part.y), []).append((part.start, part.seconds))
    for (kind, y), pieces in alike.items():
        place = (y - BAR_HEIGHT / 2, BAR_HEIGHT) if kind == "late" else (y - BAR_HEIGHT / 2, RAIL)
        look: dict[str, Any] = {"facecolor": (1, 1, 1, 0.6 if kind == "late" else 1), "edgecolor": "black", "linewidth": 0.25}
        axes.broken_barh(pieces, place, hatch=EARLY[kind].matplotlib or None, **look)
    if info.proven:
        xs, ys = [bar.start + bar.seconds for bar in info.proven], [bar.y for bar in info.proven]
        axes.plot(xs, ys, linestyle="", zorder=2.5, **PROVEN)


def _draw_marks(axes: matplotlib.axes.Axes, info: GanttInfo, letters: float) -> None:
    """Commits behind the bars, so that many do not hide them; changes in front. Heads and labels above the bars."""
    texts = labels(info, letters)
    commits, early, gone, changes = (marks_of(info, kind) for kind in ("commit", "provisional", "rolled back", "change"))
    dense = len(commits) + len(early) > MANY_COMMITS
    for mark in early:
        axes.axvline(mark.at, color="0.85" if dense else "0.65", linewidth=0.4, linestyle=":", zorder=0.5)
    for mark in gone:
        axes.axvline(mark.at, color="0.35", linewidth=0.5, linestyle="-.", zorder=0.6)
    for mark in commits:
        axes.axvline(mark.at, color="0.85" if dense else "0.55", linewidth=0.4, zorder=0.5)
    for mark in changes:
        axes.axvline(mark.at, color="black", linewidth=0.7, linestyle="--", zorder=3)
    _draw_heads(axes, [mark for mark in commits if not dense or mark.seq in texts], "v", texts)
    _draw_heads(axes, [mark for mark in early if not dense or mark.seq in texts], "v", texts, hollow=True)
    _draw_heads(axes, gone, "x", texts)
    _draw_heads(axes, changes, "D", texts)


def _draw_heads(
    axes: matplotlib.axes.Axes, marks: list[Mark], marker: str, texts: Mapping[int, str], *, hollow: bool = False
) -> None:
    if not marks:
        return  # an empty line counts as a point in the page's corner, and the layout would keep room for it
    from matplotlib.transforms import ScaledTranslation

    inches = axes.get_figure(root=True).dpi_scale_trans  # type: ignore[union-attr]  # drawn axes have a page
    transform = axes.get_xaxis_transform() + ScaledTranslation(0, HEAD_POINTS / 72, inches)
    look: dict[str, Any] = {"color": "0.25" if marker == "v" else "black", "transform": transform, "clip_on": False}
    look |= {"markerfacecolor": "white", "markeredgewidth": 0.4} if hollow else {}
    axes.plot([mark.at for mark in marks], [1.0] * len(marks), linestyle="", marker=marker, markersize=2.5, **look)
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


def _early_legend(infos: Sequence[GanttInfo]) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    present = {part.kind for info in infos for part in info.early}
    look: dict[str, Any] = {"facecolor": "white", "edgecolor": "black", "linewidth": 0.4}
    handles: list[Artist] = [
        Patch(hatch=style.matplotlib or None, label=style.words, **look) for kind, style in EARLY.items() if kind in present
    ]
    if any(info.proven for info in infos):
        handles.append(Line2D([], [], linestyle="", label="proven", **PROVEN))
    return handles


def _legend(infos: Sequence[GanttInfo], colours: Mapping[str, str]) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [Patch(facecolor=colour, label=plain(stage, 24)) for stage, colour in colours.items()]
    for outcome in dict.fromkeys(outcome for info in infos for outcome in info.outcomes):
        hatch = HATCHES[outcome]
        handles.append(Patch(facecolor="0.8", edgecolor="black", linewidth=0, hatch=hatch.matplotlib, label=hatch.words))
    handles += _early_legend(infos)
    if any(marks_of(info, "commit") for info in infos):
        handles.append(Line2D([], [], color="0.25", linewidth=0.6, marker="v", markersize=2.5, label="commit"))
    if any(marks_of(info, "rolled back") for info in infos):
        handles.append(Line2D([], [], color="0.35", linewidth=0.6, linestyle="-.", marker="x", markersize=2.5, label="roll-back"))
    if any(marks_of(info, "change") for info in infos):
        handles.append(Line2D([], [], color="black", linewidth=0.8, linestyle="--", marker="D", markersize=2.5, label="change"))
    return handles
