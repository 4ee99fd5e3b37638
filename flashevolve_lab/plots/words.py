"""Text in figures: made safe for Plotly, and what a figure must say about the runs it shows.

Owns escaping and the two standing sentences (simulated model, kind of seconds). One rule a change must keep: whatever
came from a model or a user passes through `escaped` before Plotly sees it, because Plotly reads a subset of HTML and
LaTeX in every text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from flashevolve_lab.views import RunFacts


def escaped(text: str, limit: int = 160) -> str:
    """The text as Plotly shows it literally: one line, at most ``limit`` characters, no markup, no LaTeX, valid Unicode."""
    shown = plain(text, limit)
    return html.escape(shown, quote=False).replace("$", "&#36;")


def plain(text: str, limit: int = 160) -> str:
    """The text on one line, at most ``limit`` characters, without control characters or lone surrogates."""
    valid = text.encode("utf-8", "replace").decode("utf-8")
    line = re.sub(r"[\s\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]+", " ", valid).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def subtitle(facts: Iterable[RunFacts]) -> str:
    """What a reader must know: algorithm and task when all runs agree, and whether a model was simulated."""
    runs = list(facts)
    parts = [_shared(run.algorithm for run in runs), _shared(run.task for run in runs)]
    simulated = sum(run.simulated for run in runs)
    if simulated:
        parts.append("simulated model" if simulated == len(runs) else f"simulated model in {simulated} of {len(runs)} runs")
    return " · ".join(part for part in parts if part)


def seconds_label(facts: Iterable[RunFacts]) -> str:
    """The name of the time axis: plain seconds only when every clock was the wall's."""
    clocks = sorted({run.clock for run in facts} - {"wall"})
    return f"lab seconds ({', '.join(clocks)})" if clocks else "seconds"


def _shared(names: Iterable[str]) -> str:
    distinct = set(names)
    return distinct.pop() if len(distinct) == 1 else ""
