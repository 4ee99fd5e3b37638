"""What remains of a run in a saved notebook: a small static page of HTML, and one line of text.

Pure. Owns escaping here. One rule a change must keep: every text passes through `escaped`, no typesetter may touch it (it stands
in an element that MathJax leaves alone), and the page needs no script, no network and no theme. Its one style rule touches only
an output that holds this page and no living widget.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashevolve_lab.core import Entry
from flashevolve_lab.core.events import ArtifactMade
from flashevolve_lab.views import Diagnosis, Point, Progress, RunFacts, Standing
from flashevolve_lab.widgets.texts import visible

MOST_TEXT = 1_200  # characters of the best text
AS_IT_IS = "mathjax_ignore tex2jax_ignore"  # classes of an element whose text no typesetter touches


@dataclass(frozen=True, slots=True)
class Summary:
    """What a summary tells. ``state``: in a word; ``line``: the diagnosis; ``best_texts``: component → text."""

    run: RunFacts
    standing: Standing
    state: str
    line: str
    seed: float | None = None
    points: Sequence[Point] = ()
    best_texts: Mapping[str, str] | None = None


def summary_of(entries: Sequence[Entry], state: str) -> Summary:
    """The summary of a log, read from its beginning."""
    progress, diagnosis = Progress(), Diagnosis()
    progress.feed(entries)
    diagnosis.feed(entries)
    whole = progress.snapshot()
    best = whole.standing.best_artifact
    made = (entry.event for entry in entries if isinstance(entry.event, ArtifactMade))
    texts = next((event.components for event in made if event.artifact == best), None)
    seed = whole.points[0].mean if whole.points else None
    return Summary(whole.facts, whole.standing, state, diagnosis.snapshot().line, seed, whole.points, texts)


def summary_text(s: Summary) -> str:
    """The summary in one line."""
    return f"{visible(s.run.run or 'run')}: " + ", ".join(_facts(s)) + "."


def summary_html(s: Summary) -> str:
    """The summary as HTML, theme-neutral and safe."""
    chips = ["simulated model"] if s.run.simulated else []
    chips += [f"{s.run.clock} clock"] if s.run.clock != "wall" else []
    head = f"<b>{escaped(s.run.run or 'run')}</b>" + "".join(f" <i>({chip})</i>" for chip in chips)
    said = [f"Ended by {s.standing.stop_kind}: {s.standing.stop_reason}"] if s.standing.stop_kind else [s.line]
    lines = [head, escaped(", ".join(_facts(s))), *(escaped(line) for line in [*said, s.run.proposer] if line)]
    body = "".join(f"<div>{line}</div>" for line in lines) + _sparkline(s.points) + _best(s)
    return f'{_ALONE}<div class="fl-static {AS_IT_IS}" style="border-left: 3px solid #888; padding: 2px 10px">{body}</div>'


# Where no kernel knows the widgets any more Jupyter says "Loading widget…" in their place: beside the summary that is noise.
_ALONE = (
    "<style>.jp-OutputArea:has(.fl-static):not(:has(.fl-lab)) "
    ".lm-Panel.jp-OutputArea-output:not(:has(*)) { display: none; }</style>"
)


def escaped(text: str) -> str:
    """The text as HTML shows it literally, without control and direction characters or lone surrogates."""
    return html.escape(visible(text))


def _facts(s: Summary) -> list[str]:
    now = s.standing
    facts = ["ended" if s.state == "stopped" else s.state, f"{now.at:,.1f} s", f"{now.proposals:,} proposals", f"{now.accepted:,} accepted"]
    if now.best is not None:
        facts.append(f"best score {now.best:.3f}" + (f" (seed’s score {s.seed:.3f})" if s.seed is not None else ""))
    spent = {**now.spent.as_dict(), "seconds": round(now.at, 1)}
    return facts + [f"{spent.get(name, 0):,.10g} of {limit:,.10g} {name.replace('_', ' ')}" for name, limit in now.budget.items()]


def _best(s: Summary) -> str:
    if not s.best_texts:
        return ""
    shown = "".join(
        f'<div><b>{escaped(name)}</b></div><pre dir="auto" style="white-space: pre-wrap">{escaped(_cut(text))}</pre>'
        for name, text in s.best_texts.items()
    )
    return f"<details><summary>Best text: {escaped(s.standing.best_artifact)}</summary>{shown}</details>"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + f" … ({len(text) - MOST_TEXT:,} characters more)"


def _sparkline(points: Sequence[Point], width: int = 260, height: int = 36) -> str:
    """The best score over time as a line of its own."""
    if len(points) < 2:
        return ""
    end, low, high = points[-1].at or 1.0, points[0].best, points[-1].best
    scale = (high - low) or 1.0
    places = [(width * p.at / end, height - 2 - (height - 4) * (p.best - low) / scale) for p in points]
    path = f"M{places[0][0]:.1f},{places[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:])
    label = f"best score from {low:.3f} to {high:.3f}"
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="{label}">'
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )
