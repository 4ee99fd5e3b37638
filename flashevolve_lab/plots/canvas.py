"""What all figures of the lab have in common: a frame that suits light and dark pages, and a sentence where there is nothing to draw.

Owns the Plotly layout and the empty state. One rule a change must keep: the paper is transparent and text neutral, so
that the same figure is readable in both of JupyterLab's themes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashevolve_lab.plots.palette import GRID, NEUTRAL
from flashevolve_lab.plots.words import escaped, plain

if TYPE_CHECKING:
    import matplotlib.figure


def plotly_frame(title: str, note: str, x_label: str, height: int) -> Any:
    """An empty Plotly figure with the lab's layout; ``height`` in pixels. Texts are escaped here."""
    import plotly.graph_objects as go

    axis = {"gridcolor": GRID, "zeroline": False, "linecolor": NEUTRAL, "ticks": "outside", "tickcolor": NEUTRAL}
    head = {"text": escaped(title), "subtitle": {"text": escaped(note)}, "x": 0, "xref": "paper", "xanchor": "left"}
    return go.Figure(
        layout={
            "title": head,
            "height": height,
            "margin": {"l": 70, "r": 20, "t": 70, "b": 50},
            "paper_bgcolor": "rgba(0, 0, 0, 0)",
            "plot_bgcolor": "rgba(0, 0, 0, 0)",
            "font": {"color": NEUTRAL, "size": 13},
            "hoverlabel": {"bgcolor": "#2B2B2B", "bordercolor": NEUTRAL, "font": {"color": "#FFFFFF"}, "align": "left"},
            "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
            "xaxis": {**axis, "title": {"text": escaped(x_label)}, "showgrid": False},
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


def thousands(value: float, place: float) -> str:
    """A tick's number, with commas: 12,500."""
    return f"{value:,.10g}"
