"""What all figures of the lab have in common: a frame that suits light and dark pages, and a sentence where there is nothing to draw.

Owns the Plotly layout and the empty state. One rule a change must keep: the paper is transparent and text neutral, so
that the same figure is readable in both of JupyterLab's themes.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from flashevolve_lab.plots.palette import GRID, NEUTRAL
from flashevolve_lab.plots.words import escaped, plain

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure


def plotly_frame(title: str, note: str, x_label: str, height: int) -> Any:
    """An empty Plotly figure with the lab's layout; ``height`` in pixels, a line of the note more. Texts are escaped here."""
    import plotly.graph_objects as go

    axis = {"gridcolor": GRID, "zeroline": False, "linecolor": NEUTRAL, "ticks": "outside", "tickcolor": NEUTRAL}
    lines = [escaped(line) for line in note.split("\n")]
    more = 17 * (len(lines) - 1)
    head = {"text": escaped(title), "subtitle": {"text": "<br>".join(lines)}, "x": 0, "xref": "paper", "xanchor": "left"}
    head |= {"yref": "container", "y": 1 - 28 / (height + more), "yanchor": "top"} if more else {}
    return go.Figure(
        layout={
            "title": head,
            "height": height + more,
            "margin": {"l": 75, "r": 20, "t": 90 + more, "b": 95},
            "paper_bgcolor": "rgba(0, 0, 0, 0)",
            "plot_bgcolor": "rgba(0, 0, 0, 0)",
            "font": {"color": NEUTRAL, "size": 13},
            "hoverlabel": {"bgcolor": "#2B2B2B", "bordercolor": NEUTRAL, "font": {"color": "#FFFFFF"}, "align": "left"},
            "legend": {"orientation": "h", "x": 0, "yref": "container", "y": 0.01, "yanchor": "bottom"},
            "xaxis": {**axis, "title": {"text": escaped(x_label), "standoff": 8}, "showgrid": False},
            "yaxis": axis,
            "template": "none",
        }
    )


def plotly_empty(figure: Any, sentence: str) -> Any:
    """A figure that says why there is nothing to see."""
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    where = {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
    figure.add_annotation(text=escaped(sentence), font={"size": 14}, **where)
    return figure


def matplotlib_empty(sentence: str, page: matplotlib.figure.Figure) -> None:
    """A page that says why there is nothing to see."""
    axes = page.add_subplot()
    axes.set_axis_off()
    axes.text(0.5, 0.5, plain(sentence), ha="center", va="center", wrap=True, transform=axes.transAxes)


def label_below(axes: matplotlib.axes.Axes, label: str, note: str) -> None:
    """The x axis's label and, in grey below it, the note, broken to fit the page's width."""
    axes.set_xlabel(label)
    page = axes.get_figure(root=True)
    if note and page is not None:
        letters = max(10, int(16 * page.get_figwidth()))
        lines = [part for line in note.split("\n") for part in textwrap.wrap(plain(line), letters)]
        page.supxlabel("\n".join(lines), fontsize=7, color="0.35", x=0.01, ha="left")


def with_commas(value: float, place: float) -> str:
    """A tick's number: 12,500."""
    return f"{value:,.10g}"


def in_short(value: float, place: float) -> str:
    """A tick's number in few letters: 500, 12.5k, 3M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:,.6g}{letter}"
    return f"{value:.6g}"
