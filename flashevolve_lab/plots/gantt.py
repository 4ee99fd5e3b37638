"""The Gantt figure: a bar per job in its worker slot, lanes grouped by stage, and what changed the run as vertical lines.

Owns its info (which lane is where, what is in the window, which marks get a label). Owns no drawing (`gantt_plotly`,
`gantt_matplotlib`). One rule a change must keep: a bar is exactly as long as its job, and no two share a place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots.words import seconds_label, subtitle
from flashevolve_lab.views import VERSIONS, Mark, Span, TimelineSnapshot

GROUP_GAP = 0.9  # between the lanes of two stages, in lanes
SHOWN = (
    "commit",
    "provisional",
    "rolled back",
    "setting",
    "depth",
    "pause",
    "continue",
    "resume",
    "stop",
)  # marks drawn as lines


@dataclass(frozen=True, slots=True)
class Lane:
    """A worker slot's place: ``y`` grows downwards, one lane is 1 high."""

    stage: str
    slot: int
    y: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A job in the window: its place, and its time cut to the window (s)."""

    span: Span
    y: float
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Early:
    """The part of a bar after its partial result went on: late samples, or validating what is in the pool already (or left it)."""

    y: float
    start: float
    seconds: float
    kind: Literal["late", "provisional", "rolled back"]


@dataclass(frozen=True, slots=True)
class GanttInfo:
    """All the figure shows.

    Attributes:
        title, note: Headline and subtitle. ``x_label``: what the seconds are.
        start, end: The window (s).
        lanes: From the top. ``stages``: those that have lanes, in order.
        bars, marks: What is in the window.
        empty: A sentence when there is nothing to draw, else "".
    """

    title: str
    note: str
    x_label: str
    start: float
    end: float
    stages: tuple[str, ...] = ()
    lanes: tuple[Lane, ...] = ()
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()
    empty: str = ""

    @property
    def bottom(self) -> float:
        """The y below the last lane."""
        return self.lanes[-1].y + 0.5 if self.lanes else 0.5

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Job outcomes that occur and do not speak for themselves."""
        present = {bar.span.outcome for bar in self.bars}
        return tuple(outcome for outcome in ("running", "failed", "abandoned", "lost") if outcome in present)

    @property
    def early(self) -> tuple[Early, ...]:
        """What ran on after its partial result had gone on."""
        return tuple(part for bar in self.bars if (part := _early(bar)) is not None)

    @property
    def proven(self) -> tuple[Bar, ...]:
        """Bars that end in the window because it was proven that they cannot win."""
        return tuple(
            bar for bar in self.bars if bar.span.fate == "proven" and bar.span.end is not None and bar.span.end <= self.end
        )

    def centre(self, stage: str) -> float:
        """The middle of a stage's lanes."""
        ys = [lane.y for lane in self.lanes if lane.stage == stage]
        return sum(ys) / len(ys)


def gantt_info(snapshot: TimelineSnapshot, start: float | None = None, end: float | None = None, *, run: str = "") -> GanttInfo:
    """The info of a Gantt figure.

    Args:
        snapshot: The timeline of a run.
        start, end: The window in seconds; by default all there is.
        run: A name when the log has none yet.

    Raises:
        SetupError: the window is empty.
    """
    first, last = start or 0.0, max(snapshot.at, 1e-9) if end is None else end
    if not first < last:
        raise SetupError(f"gantt(start={first:g}, end={last:g}): expected start < end; the run is {snapshot.at:g} s long")
    lanes = _lanes(snapshot)
    places = {(lane.stage, lane.slot): lane.y for lane in lanes}
    bars = tuple(_bars(snapshot, places, first, last))
    facts = snapshot.facts
    return GanttInfo(
        title=f"Timeline: {facts.run or run}",
        note=subtitle([facts]),
        x_label=seconds_label([facts]),
        start=first,
        end=last,
        stages=tuple(stage for stage in snapshot.stages if snapshot.lanes.get(stage)),
        lanes=lanes,
        bars=bars,
        marks=tuple(mark for mark in snapshot.marks if mark.kind in SHOWN and first <= mark.at <= last),
        empty="" if bars else _why_empty(snapshot, first, last),
    )


def _why_empty(snapshot: TimelineSnapshot, first: float, last: float) -> str:
    if snapshot.spans:
        return f"No job ran between {first:g} and {last:g} s: the run is {snapshot.at:g} s long."
    return "No job has started yet: the timeline begins with the first one."


def _lanes(snapshot: TimelineSnapshot) -> tuple[Lane, ...]:
    lanes: list[Lane] = []
    y = 0.0
    for stage in snapshot.stages:
        slots = snapshot.lanes.get(stage, 0)
        lanes += [Lane(stage, slot, y + slot) for slot in range(slots)]
        y += slots + GROUP_GAP if slots else 0.0
    return tuple(lanes)


def _bars(snapshot: TimelineSnapshot, places: dict[tuple[str, int], float], first: float, last: float) -> Iterable[Bar]:
    for span in snapshot.spans:
        end = snapshot.at if span.end is None else span.end
        if span.start <= last and end >= first:
            start = max(span.start, first)
            yield Bar(span, places[span.stage, span.slot], start, min(end, last) - start)


def _early(bar: Bar) -> Early | None:
    span, end = bar.span, bar.start + bar.seconds
    at = span.released if span.inserted is None else span.inserted
    if at is None or max(at, bar.start) >= end:
        return None
    kind: Literal["late", "provisional", "rolled back"] = "late" if span.inserted is None else "provisional"
    start = max(at, bar.start)
    return Early(bar.y, start, end - start, "rolled back" if span.fate == "rolled back" else kind)


def marks_of(info: GanttInfo, kind: str) -> list[Mark]:
    """The marks of a kind of change of the pool, or (``"change"``) of everything else."""
    return [mark for mark in info.marks if (mark.kind if mark.kind in VERSIONS else "change") == kind]


def labels(info: GanttInfo, letters: float) -> dict[int, str]:
    """Labels that fit side by side above the figure: mark's entry → text.

    Changes get room before roll-backs, those before commits, the earlier before the later. ``letters``: how many fit on the width of the window.
    """
    taken: list[tuple[float, float]] = []
    fitting: dict[int, str] = {}
    for mark in sorted(
        info.marks, key=lambda mark: ((mark.kind in VERSIONS) + (mark.kind in ("commit", "provisional")), mark.at)
    ):
        text = label_of(mark)
        half = (len(text) + 1) / 2 * (info.end - info.start) / letters
        if all(mark.at + half <= left or mark.at - half >= right for left, right in taken):
            fitting[mark.seq] = text
            taken.append((mark.at - half, mark.at + half))
    return fitting


def label_of(mark: Mark) -> str:
    """A mark in one word: ``v3``, the knob that changed, or what happened."""
    match mark.kind:
        case "commit":
            return f"v{mark.version}"
        case "provisional":
            return f"v{mark.version}?"
        case "rolled back":
            return f"roll-back {mark.artifact}"
        case "setting":
            return mark.text.partition(":")[0]
        case kind:
            return kind


def gantt_height(info: GanttInfo) -> float:
    """A height in inches that gives every lane room, between 1.6 and 8."""
    return min(8.0, max(1.6, 1.0 + 0.1 * (info.bottom + 0.5)))
