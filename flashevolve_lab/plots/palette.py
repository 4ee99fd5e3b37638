"""Colours, hatches and dashes: one colour per stage in every figure and widget, readable in grey and for the colour-blind.

Owns what things look like, nothing about where they are. One rule a change must keep: the five stages of GEPA stay at
least ten steps of lightness (CIE L*) apart, so a print in grey keeps them apart; what is not a stage is told by
hatch, dash or shape, never by hue alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STAGES: Mapping[str, str] = {
    "rollout": "#63BDE6",
    "propose": "#C8500A",
    "gate": "#F5CF45",
    "validate": "#2456A0",
    "patch": "#C27A9E",
}
OTHERS = ("#1B7F5C", "#8A5A2B", "#C9B18F", "#8FBF6A", "#6B6B9E", "#4FA8A0")  # further stages of other algorithms

NEUTRAL = "#7A7A7A"  # text and lines that must be readable on a light and on a dark page
GRID = "rgba(128, 128, 128, 0.25)"
EDGE = "rgba(128, 128, 128, 0.8)"


@dataclass(frozen=True, slots=True)
class Hatch:
    """How a job that did not end well (or has not ended) is drawn: Plotly's pattern, matplotlib's hatch, and its name."""

    plotly: str
    matplotlib: str
    words: str


PLAIN = Hatch("", "", "")
HATCHES: Mapping[str, Hatch] = {
    "finished": PLAIN,
    "running": Hatch(".", ".....", "running"),
    "failed": Hatch("x", "xxxxxx", "failed"),
    "abandoned": Hatch("/", "//////", "abandoned"),
    "lost": Hatch("\\", "\\" * 6, "lost"),
}


EARLY: Mapping[str, Hatch] = {  # what ran on after its partial result had gone on
    "late": Hatch("|", "||||||", "late samples"),
    "provisional": Hatch("", "", "provisional"),
    "rolled back": Hatch("|", "||||||||", "rolled back"),
}


@dataclass(frozen=True, slots=True)
class ActionStyle:
    """How a staleness action is drawn: the feed's hue, and a hatch that tells it in grey."""

    colour: str
    plotly: str
    matplotlib: str


ACTION_STYLES: Mapping[str, ActionStyle] = {
    "accept": ActionStyle("#7CC4A4", "", ""),
    "update": ActionStyle("#2F74C0", "/", "/////"),
    "patch": ActionStyle("#B583B5", ".", "....."),
    "discard": ActionStyle("#B5430A", "x", "xxxxx"),
}
OTHER_ACTION = ActionStyle("#8A8A8A", "-", "-----")


@dataclass(frozen=True, slots=True)
class LineStyle:
    """One run among several: told apart by colour, dash and marker."""

    colour: str
    plotly_dash: str
    matplotlib_dash: str | tuple[float, tuple[float, ...]]
    plotly_marker: str
    matplotlib_marker: str


LINES = (
    LineStyle("#2F74C0", "solid", "solid", "circle", "o"),
    LineStyle("#D2601A", "dash", (0, (5, 2)), "square", "s"),
    LineStyle("#2E8B57", "dot", (0, (1, 1.2)), "diamond", "D"),
    LineStyle("#9A5FB0", "dashdot", (0, (5, 1.5, 1, 1.5)), "triangle-up", "^"),
    LineStyle("#8C6D1F", "longdash", (0, (9, 2)), "triangle-down", "v"),
    LineStyle("#C2527A", "longdashdot", (0, (9, 1.5, 1, 1.5)), "cross", "P"),
)


def stage_colours(stages: Iterable[str]) -> dict[str, str]:
    """A colour for each stage: its own if it has one, else the next free one, in order (repeating after the last)."""
    stages = list(stages)
    free = [*OTHERS, *(colour for stage, colour in STAGES.items() if stage not in stages)]
    unnamed = [stage for stage in stages if stage not in STAGES]
    given = {stage: free[i % len(free)] for i, stage in enumerate(unnamed)}
    return {stage: STAGES.get(stage) or given[stage] for stage in stages}


def line_style(i: int) -> LineStyle:
    """The style of the i-th run (from 0)."""
    return LINES[i % len(LINES)]
