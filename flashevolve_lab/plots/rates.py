"""The rate figure: proposals and accepted ones by configuration, per minute, per thousand metric calls or per million tokens.

Owns its info and its two drawings. One rule a change must keep: a rate is over the whole run, its seed and its failures
included, and every seed is a point, so that nobody has to trust a bar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots.canvas import label_below, matplotlib_empty, plotly_empty, plotly_frame, with_commas
from flashevolve_lab.plots.interval import Estimate, estimate, seeds_note
from flashevolve_lab.plots.palette import EDGE, NEUTRAL
from flashevolve_lab.plots.words import escaped, plain, seconds_label, subtitle
from flashevolve_lab.views import ProgressSnapshot, Standing

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

PER: Mapping[str, tuple[float, str]] = {  # what a rate is over: how much of it, and in words
    "minute": (60.0, "minute"),
    "metric_calls": (1_000.0, "1,000 metric calls"),
    "tokens": (1_000_000.0, "million tokens"),
}
COLOURS: Mapping[str, str] = {"accepted": "#2456A0", "proposals": "#A9C3E6"}  # dark and light: apart in grey
BAR_HEIGHT = 0.8


@dataclass(frozen=True, slots=True)
class RateBar:
    """The rate of one sort of outcome (``"accepted"``, ``"proposals"``) in one configuration, over its runs."""

    label: str
    what: str
    rate: Estimate


@dataclass(frozen=True, slots=True)
class RatesInfo:
    """All the figure shows.

    Attributes:
        title, note: Headline and subtitle. ``x_label``: what the rate is, with its unit.
        labels: The configurations, from the top. ``whats``: sorts of bars in each, from the top.
        bars: In that order. ``missing``: labels without a rate, and why.
        empty: A sentence when there is nothing to draw, else "".
    """

    title: str
    note: str
    x_label: str
    labels: tuple[str, ...]
    whats: tuple[str, ...]
    bars: tuple[RateBar, ...]
    missing: Mapping[str, str]
    empty: str = ""

    def place(self, bar: RateBar) -> float:
        """A bar's y: a configuration is 1 high, and y grows downwards."""
        slot = BAR_HEIGHT / len(self.whats)
        return self.labels.index(bar.label) - BAR_HEIGHT / 2 + (self.whats.index(bar.what) + 0.5) * slot

    @property
    def words(self) -> str:
        """The note, and what the points are."""
        seeds = seeds_note([bar.rate for bar in self.bars])
        return "\n".join(filter(None, (self.note, seeds and f"{seeds}, a point per run")))

    def points(self, bar: RateBar) -> list[tuple[float, float]]:
        """(rate, y) of each of a bar's runs, from its upper to its lower edge, so that equal ones stay apart; none for one run."""
        values, room = bar.rate.values, 0.5 * BAR_HEIGHT / len(self.whats)
        return [(x, self.place(bar) + room * (i / (len(values) - 1) - 0.5)) for i, x in enumerate(values) if len(values) > 1]


def rates_info(runs: Mapping[str, Sequence[ProgressSnapshot]], per: str = "minute", *, proposals: bool = False) -> RatesInfo:
    """The info of a rate figure.

    Args:
        runs: Label → progress of one or several runs (seeds) of that configuration.
        per: ``"minute"`` of lab time, ``"metric_calls"`` (a thousand), or ``"tokens"`` (a million).
        proposals: Draw all proposals too, beside the accepted ones.

    Raises:
        SetupError: another unit.
    """
    if per not in PER:
        raise SetupError(f"rates(per={per!r}): a rate is per one of {', '.join(PER)}")
    whats = ("proposals", "accepted") if proposals else ("accepted",)
    found = {label: [run.standing for run in group if _amount(run.standing, per) > 0] for label, group in runs.items()}
    bars = tuple(
        RateBar(label, what, estimate((_rate(standing, what, per) for standing in standings), least=0.0))
        for label, standings in found.items()
        for what in whats
        if standings
    )
    facts = [run.facts for group in runs.values() for run in group]
    seconds = seconds_label(facts)
    unit = PER[per][1] if per != "minute" or seconds == "seconds" else seconds.replace("seconds", "minute")
    missing = {
        label: f"no {'time' if per == 'minute' else per.replace('_', ' ')} yet" for label, kept in found.items() if not kept
    }
    return RatesInfo(
        title=f"{'Proposals and accepted ones' if proposals else 'Accepted proposals'} per {unit}",
        note=subtitle(facts),
        x_label=f"{'proposals' if proposals else 'accepted proposals'} per {unit}",
        labels=tuple(runs),
        whats=whats,
        bars=bars,
        missing=missing,
        empty="" if bars else f"There is nothing to divide by yet: no run has spent any {'time' if per == 'minute' else per}.",
    )


def _amount(standing: Standing, per: str) -> float:
    return standing.at if per == "minute" else float(getattr(standing.spent, per))


def _rate(standing: Standing, what: str, per: str) -> float:
    return PER[per][0] * (standing.accepted if what == "accepted" else standing.proposals) / _amount(standing, per)


def rates_height(info: RatesInfo) -> float:
    """A height in inches that gives every bar room, at most 8."""
    return min(8.0, 1.0 + 0.15 * (len(info.whats) > 1) + (0.2 + 0.14 * len(info.whats)) * max(1, len(info.labels)))


# --- Plotly -----------------------------------------------------------------------------------------------------------


def rates_plotly(info: RatesInfo) -> Any:
    """The figure to look at: hover a bar for its mean and interval, a point for its run's rate."""
    figure = plotly_frame(info.title, info.words, info.x_label, 210 + 45 * len(info.labels) * len(info.whats))
    if info.empty:
        return plotly_empty(figure, info.empty)
    for what in info.whats:
        bars = [bar for bar in info.bars if bar.what == what]
        figure.add_traces([_bars(info, what, bars), _points(info, bars)])
    texts = [escaped(label, 40) + (f"<br>({info.missing[label]})" if label in info.missing else "") for label in info.labels]
    ticks = {"tickvals": list(range(len(info.labels))), "ticktext": texts}
    figure.update_yaxes(range=[len(info.labels) - 0.5, -0.5], showgrid=False, ticks="", automargin=True, **ticks)
    figure.update_xaxes(rangemode="tozero", showgrid=True)
    figure.update_layout(barmode="overlay", showlegend=len(info.whats) > 1, hovermode="closest")
    return figure


def _bars(info: RatesInfo, what: str, bars: list[RateBar]) -> Any:
    import plotly.graph_objects as go

    several = any(len(bar.rate.values) > 1 for bar in bars)
    error = {
        "type": "data",
        "symmetric": False,
        "array": [bar.rate.high - bar.rate.mean for bar in bars],
        "arrayminus": [bar.rate.mean - bar.rate.low for bar in bars],
        "color": NEUTRAL,
        "thickness": 1.5,
    }
    return go.Bar(
        name=what,
        legendgroup=what,
        orientation="h",
        x=[bar.rate.mean for bar in bars],
        y=[info.place(bar) for bar in bars],
        width=BAR_HEIGHT / len(info.whats) * 0.9,
        marker={"color": COLOURS[what], "line": {"color": EDGE, "width": 0.5}},
        error_x=error if several else None,
        hovertext=[f"<b>{escaped(bar.label)}</b><br>{what}: {escaped(bar.rate.words)}" for bar in bars],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _points(info: RatesInfo, bars: list[RateBar]) -> Any:
    import plotly.graph_objects as go

    kept = [(bar, x, y) for bar in bars for x, y in info.points(bar)]
    return go.Scatter(
        x=[x for _, x, _ in kept],
        y=[y for _, _, y in kept],
        mode="markers",
        marker={"color": "#FFFFFF", "size": 7, "line": {"color": "#000000", "width": 1}},
        hovertext=[f"{escaped(bar.label)}<br>one run: {x:.3g} {bar.what}" for bar, x, _ in kept],
        hovertemplate="%{hovertext}<extra></extra>",
        legendgroup=bars[0].what if bars else "",
        showlegend=False,
    )


# --- matplotlib -------------------------------------------------------------------------------------------------------


def rates_matplotlib(info: RatesInfo, page: matplotlib.figure.Figure) -> None:
    """The figure to print, drawn into an empty page."""
    from matplotlib.patches import Patch

    if info.empty:
        return matplotlib_empty(info.empty, page)
    axes = page.add_subplot()
    top = max((max(bar.rate.high, *bar.rate.values) for bar in info.bars), default=0.0) or 1.0
    for bar in info.bars:
        _print_bar(axes, info, bar, top)
    for label, why in info.missing.items():
        axes.text(0.01 * top, info.labels.index(label), why, va="center", fontsize=7, color="0.35")
    axes.set_yticks(range(len(info.labels)), [plain(label, 28) for label in info.labels])
    axes.set_ylim(len(info.labels) - 0.45, -0.55)
    axes.set_xlim(0, 1.16 * top)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(with_commas)
    label_below(axes, info.x_label, info.words)
    if len(info.whats) > 1:
        handles = [Patch(facecolor=COLOURS[what], label=what) for what in info.whats]
        page.legend(handles=handles, loc="outside upper left", ncols=2, handlelength=1.4)
    return None


def _print_bar(axes: matplotlib.axes.Axes, info: RatesInfo, bar: RateBar, top: float) -> None:
    y, rate = info.place(bar), bar.rate
    axes.barh(y, rate.mean, height=BAR_HEIGHT / len(info.whats) * 0.9, color=COLOURS[bar.what], linewidth=0)
    end = rate.mean
    if len(rate.values) > 1:
        span = [[rate.mean - rate.low], [rate.high - rate.mean]]
        axes.errorbar(rate.mean, y, xerr=span, color="black", elinewidth=0.8, capsize=1.8, capthick=0.8)
        xs, ys = zip(*info.points(bar), strict=True)
        axes.plot(xs, ys, "o", markersize=2.2, markerfacecolor="white", markeredgecolor="black", markeredgewidth=0.5, zorder=3)
        end = max(rate.high, *rate.values)
    axes.text(end + 0.015 * top, y, f"{rate.mean:#.3g}".rstrip("."), va="center", fontsize=7)
