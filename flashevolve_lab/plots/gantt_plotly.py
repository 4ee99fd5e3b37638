"""The Gantt figure to look at. Draws a `GanttInfo`, decides nothing about it.

One rule a change must keep: bars have an explicit width and overlay, or Plotly squeezes and stacks the lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashevolve_lab.plots.canvas import plotly_empty, plotly_frame
from flashevolve_lab.plots.gantt import Bar, GanttInfo, labels, marks_of
from flashevolve_lab.plots.palette import EARLY, EDGE, HATCHES, NEUTRAL, stage_colours
from flashevolve_lab.plots.words import escaped
from flashevolve_lab.views import Mark, Span

LANE_PIXELS, LEAST_PIXELS, MOST_PIXELS = 16, 260, 1_100
BAR_WIDTH = 0.86
RAIL = 0.3  # height of the rail along what validates a provisional artifact
PATTERN = {"fillmode": "overlay", "fgcolor": "#000000", "fgopacity": 1.0, "size": 6, "solidity": 0.3}
LETTERS = 130  # that fit above the bars on a notebook's width


def gantt_plotly(info: GanttInfo) -> Any:
    """The figure: hover a bar for its job, drag to zoom in time, a click on the legend hides a stage."""
    height = min(MOST_PIXELS, max(LEAST_PIXELS, 200 + int(LANE_PIXELS * (info.bottom + 0.5))))
    figure = plotly_frame(info.title, info.note, info.x_label, height)
    if info.empty:
        return plotly_empty(figure, info.empty)
    colours = stage_colours(info.stages)
    figure.add_traces(gantt_traces(info, colours))
    figure.update_yaxes(**lanes_axis(info))
    figure.update_xaxes(range=[info.start, info.end], showgrid=True)
    figure.update_layout(barmode="overlay", bargap=0, hovermode="closest", dragmode="zoom")
    return figure


def gantt_traces(info: GanttInfo, colours: Mapping[str, str]) -> list[Any]:
    """Bars, marks, and the legend of hatches of one run."""
    stages = [_stage(info, stage, colours[stage]) for stage in info.stages]
    return [*stages, *_early(info), *(_legend_of(outcome) for outcome in info.outcomes), *_marks(info)]


def lanes_axis(info: GanttInfo) -> dict[str, Any]:
    """The y axis that has one run's lanes."""
    ticks = {"tickvals": [info.centre(stage) for stage in info.stages], "ticktext": [escaped(s) for s in info.stages]}
    return {"range": [info.bottom, -1.6], "showgrid": False, "ticks": "", "showline": False, **ticks}


def _stage(info: GanttInfo, stage: str, colour: str) -> Any:
    import plotly.graph_objects as go

    bars = [bar for bar in info.bars if bar.span.stage == stage]
    pattern = {"shape": [HATCHES[bar.span.outcome].plotly for bar in bars], **PATTERN}
    return go.Bar(
        name=escaped(stage),
        legendgroup=escaped(stage),
        orientation="h",
        base=[bar.start for bar in bars],
        x=[bar.seconds for bar in bars],
        y=[bar.y for bar in bars],
        width=BAR_WIDTH,
        marker={"color": colour, "pattern": pattern, "line": {"color": EDGE, "width": 0.5 if len(bars) < 2_000 else 0}},
        hovertext=[_hover(bar) for bar in bars],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _early(info: GanttInfo) -> list[Any]:
    """Late samples, provisional artifacts and roll-backs as bars over the bars; where it was proven that one cannot win, its end."""
    import plotly.graph_objects as go

    traces = []
    for kind, style in EARLY.items():
        parts = [part for part in info.early if part.kind == kind]
        if not parts:
            continue
        late = kind == "late"
        colour = "rgba(255, 255, 255, 0.6)" if late else "#FFFFFF"
        marker = {"color": colour, "pattern": {"shape": style.plotly, **PATTERN}, "line": {"color": "#000000", "width": 0.5}}
        bar = go.Bar(
            name=style.words,
            orientation="h",
            base=[part.start for part in parts],
            x=[part.seconds for part in parts],
            y=[part.y if late else part.y - (BAR_WIDTH - RAIL) / 2 for part in parts],
            width=BAR_WIDTH if late else RAIL,
            marker=marker,
            hoverinfo="skip",
        )
        traces.append(bar)
    if ends := info.proven:
        xs, ys = [bar.start + bar.seconds for bar in ends], [bar.y for bar in ends]
        look = {"symbol": "line-ns-open", "size": 12, "color": "#000000", "line": {"width": 3}}
        traces.append(go.Scatter(name="proven", x=xs, y=ys, mode="markers", marker=look, hoverinfo="skip"))
    return traces


def _hover(bar: Bar) -> str:
    span = bar.span
    head = f"<b>{escaped(span.stage)}</b> {escaped(span.job)} · slot {span.slot}"
    if span.end is None:
        time = f"from {span.start:,.2f} s, still running"
    else:
        time = f"{span.start:,.2f} to {span.end:,.2f} s ({span.end - span.start:,.2f} s)"
    gap = f"base v{span.base}, gap {span.gap}" if span.kind != "seed" else "the seed"
    return "<br>".join([head, _what(span), gap, time, _cost(span), *_ending(span)])


def _what(span: Span) -> str:
    made = f" → {escaped(span.artifact)}" if span.artifact else ""
    return escaped(span.item) + made + (f" (from {escaped(span.parent)})" if span.parent else "")


def _cost(span: Span) -> str:
    dollars = f", ${span.dollars:,.4f}".replace("$", "&#36;") if span.dollars else ""
    return f"{span.calls:,} model calls, {span.tokens:,} tokens{dollars}"


def _ending(span: Span) -> list[str]:
    word = span.fate or ("released" if span.released is not None else span.outcome)
    lines = [f"<i>{word}</i>: {escaped(span.note)}"] if span.note else []
    ended = escaped(span.item_outcome.replace("_", " "))
    return [*lines, f"its item ended: {ended}"] if ended else lines


def _legend_of(outcome: str) -> Any:
    """A bar that is only in the legend: what a hatch means."""
    import plotly.graph_objects as go

    hatch = HATCHES[outcome]
    pattern = {"shape": hatch.plotly, **PATTERN}
    marker = {"color": "#BBBBBB", "pattern": pattern, "line": {"color": EDGE, "width": 0.5}}
    return go.Bar(name=hatch.words, x=[None], y=[None], orientation="h", marker=marker, hoverinfo="skip")


def _marks(info: GanttInfo) -> list[Any]:
    commits, early, gone, changes = (marks_of(info, kind) for kind in ("commit", "provisional", "rolled back", "change"))
    traces = []
    if commits:
        traces += _mark_traces(info, commits, "commit", "solid", "triangle-down", 0.4)
    if early:
        traces += _mark_traces(info, early, "joins provisionally", "dot", "triangle-down-open", 0.4)
    if gone:
        traces += _mark_traces(info, gone, "roll-back", "dashdot", "x-thin-open", 0.8)
    if changes:
        traces += _mark_traces(info, changes, "change", "dash", "diamond", 0.9)
    return traces


def _mark_traces(info: GanttInfo, marks: list[Mark], name: str, dash: str, symbol: str, opacity: float) -> list[Any]:
    """All lines of a sort as one trace, and their heads with labels and hover as another."""
    import plotly.graph_objects as go

    texts = labels(info, LETTERS)
    grouped = {"name": name, "legendgroup": name}
    xs = [x for mark in marks for x in (mark.at, mark.at, None)]
    ys = [y for _ in marks for y in (-0.75, info.bottom, None)]
    style = {"color": NEUTRAL, "width": 1, "dash": dash}
    rules = go.Scatter(x=xs, y=ys, mode="lines", line=style, opacity=opacity, hoverinfo="skip", **grouped)
    rules.showlegend = False
    heads = go.Scatter(
        x=[mark.at for mark in marks],
        y=[-0.85] * len(marks),
        mode="markers+text",
        marker={"symbol": symbol, "size": 8, "color": NEUTRAL},
        text=[escaped(texts.get(mark.seq, ""), 24) for mark in marks],
        textposition="top center",
        textfont={"size": 11, "color": NEUTRAL},
        hovertext=[f"{escaped(mark.text, 240)}<br>at {mark.at:,.2f} s" for mark in marks],
        hovertemplate="%{hovertext}<extra></extra>",
        cliponaxis=False,
        **grouped,
    )
    return [rules, heads]
