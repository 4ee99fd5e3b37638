"""Figures: a view's snapshot → an info → Plotly (to look at) or matplotlib (to print), with a manifest.

Owns how things look. Knows no engine and no run handle. One rule a change must keep: importing this room loads
neither Plotly nor matplotlib; drawing does.
"""

from flashevolve_lab.plots.figure import Figure, Source
from flashevolve_lab.plots.figures import Figures, gantt_figure, score_figure
from flashevolve_lab.plots.gantt import GanttInfo, gantt_info
from flashevolve_lab.plots.gantt_matplotlib import gantt_matplotlib
from flashevolve_lab.plots.gantt_plotly import gantt_plotly
from flashevolve_lab.plots.palette import HATCHES, LINES, NEUTRAL, STAGES, stage_colours
from flashevolve_lab.plots.score import XS, ScoreInfo, score_info, score_matplotlib, score_plotly

__all__ = [
    "HATCHES", "LINES", "NEUTRAL", "STAGES", "XS", "Figure", "Figures", "GanttInfo", "ScoreInfo", "Source", "gantt_figure",
    "gantt_info", "gantt_matplotlib", "gantt_plotly", "score_figure", "score_info", "score_matplotlib", "score_plotly",
    "stage_colours",
]  # fmt: skip
