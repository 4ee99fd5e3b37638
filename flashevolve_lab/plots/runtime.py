"""The runtime figure: the speed-up that the model of batched GEPA predicts, beside the speed-up that was measured.

Owns its info and its two drawings. Owns no formula (`views.runtime`). One rule a change must keep: what the model is given
stands in the figure's note, so that a reader can reckon it again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots.canvas import label_below, matplotlib_empty, plotly_empty, plotly_frame, with_commas
from flashevolve_lab.plots.interval import Estimate, estimate, seeds_note
from flashevolve_lab.plots.palette import NEUTRAL, line_style
from flashevolve_lab.plots.words import escaped, subtitle
from flashevolve_lab.views import BatchedRuntime, RuntimeSnapshot, batched_runtime

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

LEAST_K = 16  # the curve goes at least this far
NEEDED = ("acceptance", "validation", "workers", "step_s", "rollout_s")
COUNTS = ("validation", "workers", "minibatch")
Y_LABEL = "speed-up over k = 1"
MODEL, SLOWEST, IDEAL, CEILING = "model", "model, slowest of k", "ideal: k times", "floor B·T_e/W"


@dataclass(frozen=True, slots=True)
class Measured:
    """The speed-up of the runs of one label that have ``k`` proposals at once; ``kind``: ``"batched"``, ``"pipelined"``, …"""

    label: str
    kind: str
    k: int
    speedup: Estimate


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """All the figure shows.

    Attributes:
        title, note: Headline and subtitle. ``x_label``: what k is. ``given``: what the model was given, in words.
        ks: Where it is evaluated. ``model``: T(1)/T(k) there; ``slowest``: with L_step growing with k (empty without a spread).
        ceiling: The speed-up at which T is its floor, all workers rolling out.
        measured: What the runs show. ``left_out``: labels that are not in the figure, and why.
        empty: A sentence when there is nothing to draw, else "".
    """

    title: str
    note: str
    x_label: str
    given: str = ""
    ks: tuple[int, ...] = ()
    model: tuple[float, ...] = ()
    slowest: tuple[float, ...] = ()
    ceiling: float = 0.0
    measured: tuple[Measured, ...] = ()
    left_out: Mapping[str, str] | None = None
    empty: str = ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of schedules that were measured."""
        return tuple(dict.fromkeys(point.kind for point in self.measured))

    @property
    def words(self) -> str:
        """The note, what the model was given, and what the points are."""
        left = "; ".join(f"without {label}: {why}" for label, why in (self.left_out or {}).items())
        return "\n".join(filter(None, (self.note, self.given, seeds_note([p.speedup for p in self.measured]), left)))


def runtime_info(
    runs: Mapping[str, Sequence[RuntimeSnapshot]], given: Mapping[str, float] | None = None, *, upto: int | None = None
) -> RuntimeInfo:
    """The info of a runtime figure.

    A measured speed-up is the seconds a metric call took one by one (mean of those runs) over the seconds it took in the run,
    both after the seed's commit: the time to an equal budget.

    Args:
        runs: Label → what one or several runs (seeds) show. Those with one proposal at a time are what others are measured
            against, and what the model's quantities are estimated from.
        given: Arguments of `batched_runtime` (without ``k``) that replace estimates; all it needs where there is no run.
        upto: The largest k of the curve; by default the largest of the runs, at least 16.

    Raises:
        SetupError: without runs a quantity is missing; or one is outside its range.
    """
    snapshots = [run for group in runs.values() for run in group]
    baseline = [run for run in snapshots if run.batched and run.k == 1 and run.steady]
    quantities = _quantities(baseline, dict(given or {}))
    lacking = [name for name in NEEDED if name not in quantities]
    if lacking and not runs:
        raise SetupError(f"runtime: without a run the model needs {', '.join(lacking)} as numbers")
    measured, left_out = _measured(runs, baseline)
    x_label = "proposals at once, k" if all(p.kind == "batched" for p in measured) else "proposals at once, k (or in flight)"
    frame = RuntimeInfo("Runtime of batched GEPA: predicted and measured", subtitle(run.facts for run in snapshots), x_label)
    if lacking:
        return replace(frame, empty=_why_empty(baseline))
    most = upto or max([LEAST_K, *(point.k for point in measured)])
    ks = tuple(range(1, most + 1))
    spread = quantities.pop("spread", 0.0)
    plain_model = [_model(k, quantities, 0.0) for k in ks]
    return replace(
        frame,
        given=_in_words(quantities, spread),
        ks=ks,
        model=tuple(at.speedup for at in plain_model),
        slowest=tuple(_model(k, quantities, spread).speedup for k in ks) if spread else (),
        ceiling=plain_model[0].ceiling,
        measured=measured,
        left_out=left_out,
    )


def _quantities(baseline: Sequence[RuntimeSnapshot], given: dict[str, float]) -> dict[str, float]:
    unknown = set(given) - {*NEEDED, "spread", "minibatch"}
    if unknown:
        raise SetupError(
            f"runtime: the model has no {', '.join(sorted(unknown))}; it has {', '.join(NEEDED)}, spread, minibatch"
        )
    usable = [run for run in baseline if run.measurable]
    names = (*NEEDED, "spread", *(["minibatch"] if all(run.minibatch for run in usable) else []))
    seen: dict[str, float] = {name: fmean(float(getattr(run, name)) for run in usable) for name in names} if usable else {}
    seen.update(given)
    return {name: max(1, round(value)) if name in COUNTS else value for name, value in seen.items()}


def _model(k: int, quantities: Mapping[str, Any], spread: float) -> BatchedRuntime:
    return batched_runtime(k=k, spread=spread, **quantities)


def _measured(
    runs: Mapping[str, Sequence[RuntimeSnapshot]], baseline: Sequence[RuntimeSnapshot]
) -> tuple[tuple[Measured, ...], dict[str, str]]:
    pace = [run.seconds / run.metric_calls for run in baseline if run.metric_calls]
    points, left_out = [], {}
    for label, group in runs.items():
        kept = [run for run in group if run.metric_calls and run.seconds > 0]
        alike = {(run.k, run.batched) for run in kept}
        if not kept or not pace:
            left_out[label] = "nothing measured after the seed yet"
        elif not all(run.steady for run in kept):
            left_out[label] = "its schedule or depth changed on the way"
        elif not kept[0].k:
            left_out[label] = "its schedule does not say how many proposals it has at once"
        elif len(alike) > 1:
            left_out[label] = "its runs have no k in common"
        else:
            speedups = estimate((fmean(pace) * run.metric_calls / run.seconds for run in kept), least=0.0)
            points.append(Measured(label, _kind(kept[0]), kept[0].k, speedups))
    return tuple(points), left_out


def _kind(run: RuntimeSnapshot) -> str:
    return "batched" if run.batched else run.schedule.partition("(")[0].lower() or "other"


def _why_empty(baseline: Sequence[RuntimeSnapshot]) -> str:
    if not baseline:
        return "No run had one proposal at a time: a speed-up is measured against Sequential() or Batched(1, 1)."
    return "Nothing to estimate the model from yet: no proposal was validated one by one."


def _in_words(q: Mapping[str, Any], spread: float) -> str:
    parts = [f"a = {q['acceptance']:.2f}", f"V = {q['validation']}", f"W = {q['workers']}"]
    parts += [f"L_step = {q['step_s']:.3g} s", f"T_e = {q['rollout_s']:.3g} s"]
    return ", ".join(parts + ([f"σ = {spread:.2f}"] if spread else []))


# --- Plotly -----------------------------------------------------------------------------------------------------------


def runtime_plotly(info: RuntimeInfo) -> Any:
    """The figure to look at: hover a curve for its prediction, a point for its runs."""
    import plotly.graph_objects as go

    figure = plotly_frame(info.title, info.words, info.x_label, 490)
    if info.empty:
        return plotly_empty(figure, info.empty)
    hover = "k = %{x}: %{y:.3g} times<extra>%{fullData.name}</extra>"
    for name, ys, dash, width in _curves(info):
        line = {"color": NEUTRAL, "dash": dash, "width": width}
        figure.add_trace(go.Scatter(name=name, x=info.ks, y=ys, mode="lines", line=line, hovertemplate=hover))
    for i, kind in enumerate(info.kinds):
        figure.add_trace(_plotly_points(kind, [point for point in info.measured if point.kind == kind], i))
    ticks = [2**i for i in range(12) if 2**i <= 2 * info.ks[-1]]
    figure.update_xaxes(type="log", tickvals=ticks, showgrid=True)
    figure.update_yaxes(type="log", tickvals=[0.5, *ticks], title={"text": Y_LABEL}, range=_log10(_y_range(info)))
    figure.update_layout(hovermode="closest", margin_b=125)
    return figure


def _curves(info: RuntimeInfo) -> list[tuple[str, Sequence[float], str, float]]:
    curves: list[tuple[str, Sequence[float], str, float]] = [
        (IDEAL, info.ks, "dot", 1.0),
        (CEILING, [info.ceiling] * len(info.ks), "dashdot", 1.0),
        (MODEL, info.model, "solid", 2.0),
    ]
    return curves + ([(SLOWEST, info.slowest, "dash", 2.0)] if info.slowest else [])


def _plotly_points(kind: str, points: list[Measured], i: int) -> Any:
    import plotly.graph_objects as go

    style = line_style(i)
    error = {
        "type": "data", "symmetric": False, "color": style.colour, "thickness": 1.2,
        "array": [point.speedup.high - point.speedup.mean for point in points],
        "arrayminus": [point.speedup.mean - max(point.speedup.low, 0.01) for point in points],
    }  # fmt: skip
    return go.Scatter(
        name=f"measured, {escaped(kind)}",
        x=[point.k for point in points],
        y=[point.speedup.mean for point in points],
        mode="markers",
        marker={"symbol": style.plotly_marker, "color": style.colour, "size": 10},
        error_y=error if any(len(point.speedup.values) > 1 for point in points) else None,
        hovertext=[f"<b>{escaped(point.label)}</b><br>k = {point.k}: {escaped(point.speedup.words)}" for point in points],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _y_range(info: RuntimeInfo) -> tuple[float, float]:
    """Everything measured and predicted; the ideal and the floor only as far as they are in reach."""
    shown = [*info.model, *info.slowest, *(value for p in info.measured for value in (p.speedup.mean, *p.speedup.values))]
    return min(0.9, 0.9 * min(shown)), 1.6 * max(shown)


def _log10(span: tuple[float, float]) -> list[float]:
    return [math.log10(value) for value in span]


# --- matplotlib -------------------------------------------------------------------------------------------------------

DASHES: Mapping[str, Any] = {"dot": (0, (1, 1.5)), "dashdot": (0, (5, 1.5, 1, 1.5)), "solid": "solid", "dash": (0, (4, 1.5))}


def runtime_matplotlib(info: RuntimeInfo, page: matplotlib.figure.Figure) -> None:
    """The figure to print, drawn into an empty page."""
    if info.empty:
        return matplotlib_empty(info.empty, page)
    axes = page.add_subplot()
    for name, ys, dash, width in _curves(info):
        colour = "0.45" if name in (IDEAL, CEILING) else "black"
        axes.plot(info.ks, ys, color=colour, linestyle=DASHES[dash], linewidth=0.55 * width, label=name)
    for i, kind in enumerate(info.kinds):
        _print_points(axes, [point for point in info.measured if point.kind == kind], i)
    ticks = [2**i for i in range(12) if 2**i <= 2 * info.ks[-1]]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(with_commas)
    axes.yaxis.set_major_formatter(with_commas)
    axes.set_xlim(0.9, 1.12 * info.ks[-1])
    axes.set_ylim(*_y_range(info))
    axes.set_ylabel(Y_LABEL)
    axes.grid(color="0.92", linewidth=0.5)
    axes.set_axisbelow(True)
    label_below(axes, info.x_label, info.words)
    page.legend(loc="outside upper left", ncols=max(1, int(page.get_figwidth() / 1.6)), handlelength=2.6, columnspacing=1.2)
    return None


def _print_points(axes: matplotlib.axes.Axes, points: list[Measured], i: int) -> None:
    style = line_style(i)
    means = [point.speedup.mean for point in points]
    spans = [[p.speedup.mean - p.speedup.low for p in points], [p.speedup.high - p.speedup.mean for p in points]]
    look: dict[str, Any] = {
        "color": style.colour,
        "fmt": style.matplotlib_marker,
        "markersize": 4,
        "elinewidth": 0.8,
        "capsize": 1.8,
        "zorder": 4,
    }
    label = f"measured, {points[0].kind}"
    axes.errorbar([point.k for point in points], means, yerr=spans, label=label, **look)
