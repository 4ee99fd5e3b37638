"""Figures: a view's snapshot → an info → Plotly (to look at) or matplotlib (to print), with a manifest.

Owns how things look. Knows no engine and no run handle. One rule a change must keep: importing this room loads
neither Plotly nor matplotlib; drawing does.
"""

from flashevolve_lab.plots.figure import Figure, Source
from flashevolve_lab.plots.figures import (
    Figures,
    gantt_figure,
    gaps_figure,
    rates_figure,
    runtime_figure,
    score_figure,
    stacked_gantt_figure,
)
from flashevolve_lab.plots.gantt import GanttInfo, gantt_info
from flashevolve_lab.plots.gantt_matplotlib import gantt_matplotlib
from flashevolve_lab.plots.gantt_plotly import gantt_plotly
from flashevolve_lab.plots.gaps import GapsInfo, gaps_info, gaps_matplotlib, gaps_plotly
from flashevolve_lab.plots.palette import ACTION_STYLES, HATCHES, LINES, NEUTRAL, STAGES, stage_colours
from flashevolve_lab.plots.rates import PER, RatesInfo, rates_info, rates_matplotlib, rates_plotly
from flashevolve_lab.plots.runtime import RuntimeInfo, runtime_info, runtime_matplotlib, runtime_plotly
from flashevolve_lab.plots.score import XS, ScoreInfo, score_info, score_matplotlib, score_plotly
from flashevolve_lab.plots.stacked_gantt import (
    StackedGanttInfo,
    stacked_gantt_info,
    stacked_gantt_matplotlib,
    stacked_gantt_plotly,
)

__all__ = [
    "ACTION_STYLES", "HATCHES", "LINES", "NEUTRAL", "PER", "STAGES", "XS", "Figure", "Figures", "GanttInfo", "GapsInfo", "RatesInfo",
    "RuntimeInfo", "ScoreInfo", "Source", "StackedGanttInfo", "gantt_figure", "gantt_info", "gantt_matplotlib", "gantt_plotly",
    "gaps_figure", "gaps_info", "gaps_matplotlib", "gaps_plotly", "rates_figure", "rates_info", "rates_matplotlib", "rates_plotly",
    "runtime_figure", "runtime_info", "runtime_matplotlib", "runtime_plotly", "score_figure", "score_info", "score_matplotlib",
    "score_plotly", "stacked_gantt_figure", "stacked_gantt_info", "stacked_gantt_matplotlib", "stacked_gantt_plotly",
    "stage_colours",
]  # fmt: skip
