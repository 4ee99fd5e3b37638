"""The timeline as bytes: fixed-size records for spans, ends and queue steps, with a small JSON head.

Owns `Picture`, which turns what `views.Timeline` reports into updates for a browser and keeps the whole as bytes, and `Details`,
what is told about a job only when somebody asks. Owns no comm and no pixels (`gantt`). One rule a change must keep: the updates
since any point, applied to the whole of that point, give the whole of now; the record layout is repeated at the top of `gantt.js`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashevolve_lab.core import Entry, Event
from flashevolve_lab.core import events as ev
from flashevolve_lab.views import ACTIONS, OUTCOMES, Mark, RunFacts, Span, TimelineDelta
from flashevolve_lab.widgets.texts import one_line

SPAN = struct.Struct("<dffHHHH")  # start s · seconds (below 0: running) · early (below 0: not) · lane · flags · base version · gap
END = struct.Struct("<IffH")  # span · seconds · early · flags
STEP = struct.Struct("<dH")  # at s · items waiting

JOB_OUTCOMES = ("running", "finished", "failed", "abandoned", "lost")  # bits 0-2
ITEM_OUTCOMES = ("", *OUTCOMES)  # bits 3-6
VERDICTS = ("", *ACTIONS)  # bits 7-9: what a staleness policy ordered after this job
STEPPED = 1 << 10
SPECULATIVE = 1 << 11  # its partial result went on, `early` seconds after its start: released, or (INSERTED) in the pool before its time
FATES = ("", "confirmed", "rolled back", "proven")  # bits 12-13: what came of it
INSERTED = 1 << 14

MOST = 0xFFFF
LABEL, TEXT, NOTE = 28, 200, 400  # characters that a mark's label, its text and a job's note may have
CALLS, PATH = 400, 40  # calls of one job, and jobs of its item, that are told


@dataclass(frozen=True, slots=True)
class Update:
    """What a browser gets: ``head`` (JSON) and the records of new spans, of ended ones, and of queue steps.

    The head's ``prev`` is the entry up to which the receiver must have come; ``spans``, ``marks``, ``lanes``: from which
    place on the new ones are appended; ``steps``: stage, where to cut its line, how many steps follow. A whole is the same,
    from 0, without ends.
    """

    head: dict[str, Any]
    spans: bytes
    ends: bytes
    steps: bytes

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return len(_json(self.head)) + len(self.spans) + len(self.ends) + len(self.steps)


class Details:
    """What became of items after their job, and the calls inside each job; read from the log, told when asked."""

    def __init__(self) -> None:
        self.calls: dict[str, list[list[float]]] = {}  # job → [start, end (below 0: open), 1 if it failed]
        self.bits: dict[str, int] = {}  # job → flags of what its item met after it
        self._open: dict[str, list[float]] = {}  # call → its entry in calls
        self._scored: dict[str, list[list[float]]] = {}  # job → instants at which samples were scored
        self._last: dict[str, str] = {}  # item → its latest job

    def see(self, event: Event, at: float) -> str:
        """Take in an event; returns the job whose flags it changed, or ""."""
        match event:
            case ev.JobStarted(job, item=item):
                self._last[item] = job
                for other in event.also:  # what becomes of it is not this job's mark
                    self._last.pop(other, None)
            case ev.CallStarted(call, job):
                self._open[call] = [at, -1.0, 0]
                self.calls.setdefault(job, []).append(self._open[call])
            case ev.CallFinished(call, outcome):
                if (record := self._open.pop(call, None)) is not None:
                    record[1:] = [at, float(outcome != "ok")]
            case ev.SampleScored(job):
                self._scored.setdefault(job, []).append([at, at, 0])
            case ev.SampleFailed(job):
                self._scored.setdefault(job, []).append([at, at, 1])
            case ev.StalenessJudged(item, action=action):
                return self._mark(item, VERDICTS.index(action) << 7 if action in VERDICTS else 0, 0b111 << 7)
            case ev.ItemEnded(item, outcome):
                return self._mark(item, ITEM_OUTCOMES.index(outcome) << 3, 0b1111 << 3)
            case _:
                pass
        return ""

    def _mark(self, item: str, bits: int, mask: int) -> str:
        if not (job := self._last.get(item, "")):
            return ""
        self.bits[job] = self.bits.get(job, 0) & ~mask | bits
        return job

    def inside(self, job: str) -> list[list[float]]:
        """The job's calls; if it made none, the instants at which its samples were scored."""
        return self.calls.get(job) or self._scored.get(job) or []


class Picture:
    """The whole Gantt as bytes, and what each delta of the timeline adds to it.

    Args:
        colours: Stages → a colour for each.
    """

    def __init__(self, colours: Callable[[Sequence[str]], Mapping[str, str]]) -> None:
        self.spans: list[Span] = []
        self.index: dict[str, int] = {}  # job → its place in spans
        self._path: dict[str, list[int]] = {}  # item → the places of its jobs
        self.details = Details()
        self.facts = RunFacts()
        self.seq, self.at, self.status = 0, 0.0, "new"
        self.marks: list[list[Any]] = []
        self.stages: tuple[str, ...] = ()
        self.lanes: list[list[int]] = []  # stage, slot: in order of their first job
        self._lane: dict[tuple[str, int], int] = {}
        self._colours = colours
        self._records = bytearray()
        self._steps: dict[str, bytearray] = {}

    def see(self, entries: Iterable[Entry]) -> set[str]:
        """Take in what the timeline does not report; returns the jobs it concerns. Feed the same entries to the timeline."""
        touched = set()
        for entry in entries:
            if isinstance(entry.event, ev.RunStarted):
                self.facts = RunFacts.of(entry.event)
            elif isinstance(entry.event, ev.RunResumed):
                self.facts = self.facts.after(entry.event)
            touched.add(self.details.see(entry.event, max(self.at, entry.at)))
        return touched - {""}

    def take(self, delta: TimelineDelta, touched: Iterable[str] = ()) -> Update:
        """Take in what the timeline reports; returns it as bytes."""
        prev, spans_from, marks_from, lanes_from = self.seq, len(self.spans), len(self.marks), len(self.lanes)
        head: dict[str, Any] = {"prev": prev, "seq": delta.seq, "at": round(delta.at, 6), "status": delta.status}
        if delta.stages != self.stages:
            self.stages = delta.stages
            head |= self._names()
        fresh = self._append(delta.spans)
        ends = self._change(delta, touched, spans_from)
        self.marks += [_mark(mark) for mark in delta.marks]
        self.seq, self.at, self.status = delta.seq, delta.at, delta.status
        head["spans"] = [spans_from, len(delta.spans)]
        if len(self.lanes) > lanes_from:
            head["lanes"] = [lanes_from, self.lanes[lanes_from:]]
        if delta.marks:
            head["marks"] = [marks_from, self.marks[marks_from:]]
        head["steps"], steps = self._cut_and_extend(delta)
        return Update(head, fresh, ends, steps)

    def whole(self) -> bytes:
        """Everything so far: the length of the head (4 bytes), the head, the spans, the steps."""
        head = {"prev": 0, "seq": self.seq, "at": round(self.at, 6), "status": self.status, **self._names()}
        head |= {"spans": [0, len(self.spans)], "lanes": [0, self.lanes], "marks": [0, self.marks]}
        head["steps"] = [[i, 0, len(self._steps.get(stage, b"")) // STEP.size] for i, stage in enumerate(self.stages)]
        text = _json(head)
        return b"".join([len(text).to_bytes(4, "little"), text, self._records, *(self._steps.get(s, b"") for s in self.stages)])

    def about(self, i: int) -> dict[str, Any]:
        """What is told about the job of a span when somebody asks."""
        span = self.spans[i]
        inside = self.details.inside(span.job)
        names = ("job", "item", "kind", "parent", "artifact", "stage", "outcome")
        return {
            "i": i,
            **{name: one_line(getattr(span, name), 80) for name in names},
            **{name: getattr(span, name) for name in ("slot", "base", "version", "gap", "calls", "tokens", "stepped", "fate")},
            "released": span.released,
            "inserted": span.inserted,
            "dollars": round(span.dollars, 6),
            "note": one_line(span.note, NOTE),
            "path": self._path[span.item][-PATH:],
            "inside": [[round(start, 6), round(end, 6), int(bad)] for start, end, bad in inside[:CALLS]],
            "more": max(0, len(inside) - CALLS),
        }

    # --- how it becomes bytes ---------------------------------------------------------------------------------------

    def _names(self) -> dict[str, Any]:
        colours = self._colours(self.stages)
        facts = {"clock": self.facts.clock, "run": one_line(self.facts.run, 80), "simulated": self.facts.simulated}
        return {**facts, "stages": [[one_line(s, 40), colours[s]] for s in self.stages]}

    def _append(self, spans: Sequence[Span]) -> bytes:
        fresh = bytearray()
        for span in spans:
            self.index[span.job] = len(self.spans)
            self._path.setdefault(span.item, []).append(len(self.spans))
            self.spans.append(span)
            fresh += self._record(span)
        self._records += fresh
        return bytes(fresh)

    def _change(self, delta: TimelineDelta, touched: Iterable[str], known: int) -> bytes:
        """Records of what changed in spans the receiver has; a change that no record shows is not sent."""
        for i, span in delta.changed.items():
            self.spans[i] = span
        places = set(delta.changed) | {self.index[job] for job in touched if job in self.index}
        ends = bytearray()
        for i in sorted(place for place in places if place < known):
            record = self._record(self.spans[i])
            if record != self._records[i * SPAN.size : (i + 1) * SPAN.size]:
                self._records[i * SPAN.size : (i + 1) * SPAN.size] = record
                _, seconds, early, _, flags, _, _ = SPAN.unpack(record)
                ends += END.pack(i, seconds, early, flags)
        return bytes(ends)

    def _record(self, span: Span) -> bytes:
        seconds = -1.0 if span.end is None else max(0.0, span.end - span.start)
        place = (span.stage, span.slot)
        if place not in self._lane:
            self._lane[place] = len(self.lanes)
            self.lanes.append([self.stages.index(span.stage), span.slot])
        flags = JOB_OUTCOMES.index(span.outcome) | self.details.bits.get(span.job, 0) | (STEPPED if span.stepped else 0)
        at = span.released if span.inserted is None else span.inserted
        early = -1.0 if at is None else max(0.0, at - span.start)
        flags |= _speculative(span)
        base, gap = min(max(0, span.base), MOST), min(span.gap, MOST)
        return SPAN.pack(span.start, seconds, early, self._lane[place], flags, base, gap)

    def _cut_and_extend(self, delta: TimelineDelta) -> tuple[list[list[int]], bytes]:
        places, sent = [], bytearray()
        for stage, change in delta.queues.items():
            line = self._steps.setdefault(stage, bytearray())
            steps = b"".join(STEP.pack(at, min(value, MOST)) for at, value in zip(change.at, change.value, strict=True))
            line[change.start * STEP.size :] = steps
            sent += steps
            places.append([self.stages.index(stage), change.start, len(change.at)])
        return places, bytes(sent)


def _speculative(span: Span) -> int:
    """The flags of a partial result that went on, and of what came of it."""
    early = 0 if span.released is None and span.inserted is None else SPECULATIVE
    fate = FATES.index(span.fate) << 12 if span.fate in FATES else 0
    return early | fate | (0 if span.inserted is None else INSERTED)


def _mark(mark: Mark) -> list[Any]:
    return [round(mark.at, 6), mark.kind, one_line(_label(mark), LABEL), one_line(mark.text, TEXT)]


def _label(mark: Mark) -> str:
    """A mark in a few letters: ``v3``, the knob that changed and its new value, or what happened."""
    match mark.kind:
        case "commit":
            return f"v{mark.version}"
        case "provisional":
            return f"v{mark.version}?"
        case "confirmed":
            return f"v{mark.version} stays"
        case "rolled back":
            return f"roll-back {mark.artifact}"
        case "setting":
            knob, _, change = mark.text.partition(":")
            new = change.partition(" → ")[2].partition("(")[0].strip()
            return f"{knob} → {new}" if new else knob
        case kind:
            return kind


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
