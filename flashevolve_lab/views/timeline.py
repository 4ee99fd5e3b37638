"""The Gantt of a run: a span per job, marks at what changed the run, and how long each queue was.

Owns `Timeline` and the values it shows. Owns no colours and no layout (plots, widgets). One rule a change must keep:
it reads the log and nothing else, so a finished run, a growing one and a replayed one give the same picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from flashevolve_lab.core import Entry, Event
from flashevolve_lab.core import events as ev
from flashevolve_lab.views.facts import RunFacts, worded
from flashevolve_lab.views.folding import Folding
from flashevolve_lab.views.steps import StepChange, StepLine, Steps

JobOutcome = Literal["running", "finished", "failed", "abandoned", "lost"]
Fate = Literal["", "provisional", "confirmed", "rolled back", "proven"]
MarkKind = Literal[
    "commit", "provisional", "confirmed", "rolled back", "setting", "depth", "pause", "continue", "step", "resume", "stop", "warning"
]
VERSIONS: tuple[MarkKind, ...] = ("commit", "provisional", "confirmed", "rolled back")  # marks of what became of the pool


@dataclass(frozen=True, slots=True)
class Span:
    """One job in its worker slot. Spans of one (stage, slot) never overlap.

    Attributes:
        job, stage, slot, item: Which job, in which slot (from 0), on what; ``kind``: the item's ("seed", "proposal").
        parent: The artifact it was made from, and ``artifact`` the one it works on or has made ("" while unknown).
        base, version: The item's base version and the version at the start (-1 before the seed's commit).
        gap: Versions between them as the staleness policy counts: commits of its own batch left out.
        start, end: Seconds of lab time; ``end`` is None while it runs.
        outcome: What became of the job.
        item_outcome: What became of the item, when this job was its last and ended it ("" otherwise).
        calls: Attempts sent to a model; ``tokens``, ``dollars``: charged for those that ended.
        note: Why it failed, was abandoned, released, proven hopeless or rolled back (may hold a model's text: escape before showing).
        stepped: It was started by a step while the run was paused.
        also: Further items it took along (a join).
        released: When it handed its item on with a part of its result (s); what runs after that is its tail.
        inserted: When what it validates joined the pool provisionally (s).
        fate: What became of that ("provisional" while it is open), or "proven": ended because it could no longer win.
    """

    job: str
    stage: str
    slot: int
    item: str
    kind: str
    parent: str
    artifact: str
    base: int
    version: int
    gap: int
    start: float
    end: float | None = None
    outcome: JobOutcome = "running"
    item_outcome: str = ""
    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0
    note: str = ""
    stepped: bool = False
    released: float | None = None
    inserted: float | None = None
    fate: Fate = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that changed the run, at one instant (``seq``: its entry). ``text`` may hold a user's words."""

    seq: int
    at: float
    kind: MarkKind
    text: str
    version: int | None = None
    artifact: str = ""
    item: str = ""


@dataclass(frozen=True, slots=True)
class TimelineSnapshot:
    """Everything a Gantt shows, after entry ``seq`` at ``at`` seconds.

    Attributes:
        stages: In the order of the work. ``lanes``: stage → worker slots ever used.
        spans, marks: In the order they began.
        queues: Stage → items waiting in front of it, over time.
    """

    facts: RunFacts = RunFacts()
    seq: int = 0
    at: float = 0.0
    status: str = "new"
    stages: tuple[str, ...] = ()
    lanes: Mapping[str, int] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()
    queues: Mapping[str, StepLine] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimelineDelta:
    """What a feed added to the picture.

    Append ``spans`` at ``spans_from`` and ``marks`` at ``marks_from``, replace the spans in ``changed`` (index → span),
    and apply the changes of ``queues`` (a stage without one is as before).
    """

    seq: int
    at: float
    status: str
    stages: tuple[str, ...]
    lanes: Mapping[str, int]
    spans_from: int
    spans: tuple[Span, ...]
    changed: Mapping[int, Span]
    marks_from: int
    marks: tuple[Mark, ...]
    queues: Mapping[str, StepChange]


class Timeline:
    """A live view: feed it the log in any pieces, ask for the whole at any time."""

    def __init__(self) -> None:
        self._folding = Folding()
        self._spans: list[Span] = []
        self._index: dict[str, int] = {}  # job → its place in spans
        self._last_job: dict[str, int] = {}  # item → the span of its latest job
        self._marks: list[Mark] = []
        self._lanes: dict[str, int] = {}
        self._queues: dict[str, Steps] = {}
        self._spans_sent = self._marks_sent = 0  # how many the deltas so far have given
        self._changed: set[int] = set()  # spans given before that have changed since

    def __repr__(self) -> str:
        return f"<Timeline of {len(self._spans)} jobs up to entry {self._folding.state.seq}>"

    def feed(self, entries: Iterable[Entry]) -> TimelineDelta:
        """Take in further entries (those seen before are skipped); returns what they changed."""
        for entry in self._folding.fresh(entries):
            at = self._folding.time(entry)
            self._see(entry.event, at)
            self._folding.take(entry)
            self._mark(entry, at)
            self._count_queues(entry.event, at)
        return self._delta()

    def snapshot(self) -> TimelineSnapshot:
        """The whole picture so far."""
        state = self._folding.state
        return TimelineSnapshot(
            facts=RunFacts.of(state.started, state.llms),
            seq=state.seq,
            at=state.at,
            status=state.status,
            stages=tuple(self._queues),
            lanes=dict(self._lanes),
            spans=tuple(self._spans),
            marks=tuple(self._marks),
            queues={stage: steps.line() for stage, steps in self._queues.items()},
        )

    def _delta(self) -> TimelineDelta:
        state, spans_from, marks_from = self._folding.state, self._spans_sent, self._marks_sent
        changes = {stage: steps.change() for stage, steps in self._queues.items()}
        delta = TimelineDelta(
            seq=state.seq,
            at=state.at,
            status=state.status,
            stages=tuple(self._queues),
            lanes=dict(self._lanes),
            spans_from=spans_from,
            spans=tuple(self._spans[spans_from:]),
            changed={i: self._spans[i] for i in sorted(self._changed)},
            marks_from=marks_from,
            marks=tuple(self._marks[marks_from:]),
            queues={stage: change for stage, change in changes.items() if change},
        )
        self._spans_sent, self._marks_sent = len(self._spans), len(self._marks)
        self._changed.clear()
        return delta

    # --- spans ------------------------------------------------------------------------------------------------------

    def _see(self, event: Event, at: float) -> None:
        """What an event means for the spans, the state being as it was before it."""
        match event:
            case ev.JobStarted():
                self._start(event, at)
            case ev.JobFinished(job):
                self._end(job, at, "finished", "")
            case ev.JobFailed(job, kind, message):
                self._end(job, at, "failed", f"{kind}: {message}")
            case ev.JobAbandoned(job, reason):
                self._end(job, at, "abandoned", reason)
            case ev.JobLost(job):
                self._end(job, at, "lost", "its process died")
            case ev.CallStarted(_, job):
                i = self._index[job]
                self._put(i, replace(self._spans[i], calls=self._spans[i].calls + 1))
            case ev.CallFinished():
                self._charge(event)
            case ev.Released() | ev.Proven() | ev.Provisional() | ev.Confirmed() | ev.RolledBack():
                self._speculate(event, at)
            case ev.ArtifactMade(artifact, item=item) if self._in_hand(item):
                i = self._last_job[item]
                self._put(i, replace(self._spans[i], artifact=artifact))
            case ev.ItemEnded(item, outcome) if self._in_hand(item):
                i = self._last_job[item]
                if self._spans[i].item == item:  # what became of those it took along is theirs to tell
                    self._put(i, replace(self._spans[i], item_outcome=outcome))
            case _:
                pass

    def _start(self, event: ev.JobStarted, at: float) -> None:
        state = self._folding.state
        item = state.items[event.item]
        self._index[event.job] = len(self._spans)
        self._last_job.update(dict.fromkeys((event.item, *event.also), len(self._spans)))
        self._spans.append(
            Span(
                job=event.job,
                stage=event.stage,
                slot=event.slot,
                item=event.item,
                kind=item.kind,
                parent=str(item.data.get("parent", "")),
                artifact=str(item.data.get("child", "")),
                base=item.base,
                version=event.version,
                gap=state.pool.gap(item.base, item.batch),
                start=at,
                stepped=event.stepped,
                also=event.also,
            )
        )
        self._lanes[event.stage] = max(self._lanes.get(event.stage, 0), event.slot + 1)

    def _end(self, job: str, at: float, outcome: JobOutcome, note: str) -> None:
        i = self._index[job]
        self._put(i, replace(self._spans[i], end=at, outcome=outcome, note=note or self._spans[i].note))

    def _speculate(self, event: ev.Released | ev.Proven | ev.Provisional | ev.Confirmed | ev.RolledBack, at: float) -> None:
        """A partial result, or what became of one, on the bar of its job."""
        job = self._index.get(event.job) if isinstance(event, (ev.Released, ev.Proven)) else self._last_job.get(event.item)
        if job is None:
            return
        match event:
            case ev.Released(why=why):
                changed = replace(self._spans[job], released=at, note=why)
            case ev.Proven(why=why):
                changed = replace(self._spans[job], fate="proven", note=why)
            case ev.Provisional(why=why):
                changed = replace(self._spans[job], inserted=at, fate="provisional", note=why)
            case ev.Confirmed():
                changed = replace(self._spans[job], fate="confirmed")
            case ev.RolledBack(reason=reason):
                changed = replace(self._spans[job], fate="rolled back", note=reason)
        self._put(job, changed)

    def _charge(self, event: ev.CallFinished) -> None:
        i = self._index[self._folding.state.calls[event.call].job]
        span, spent = self._spans[i], event.spent
        self._put(i, replace(span, tokens=span.tokens + spent.tokens, dollars=span.dollars + spent.dollars))

    def _in_hand(self, item: str) -> bool:
        """Whether the item is still in the hands of its latest job: it has had one, and waits in no queue."""
        state = self._folding.state
        return item in self._last_job and item in state.items and item not in state.queues[state.items[item].stage]

    def _put(self, i: int, span: Span) -> None:
        self._spans[i] = span
        if i < self._spans_sent:
            self._changed.add(i)

    # --- marks and queues -------------------------------------------------------------------------------------------

    def _mark(self, entry: Entry, at: float) -> None:
        """What an event means for the marks, the state being as it is after it."""
        match entry.event:
            case ev.Committed(version, artifact, item):
                mean = self._folding.state.pool.members[artifact].mean
                text = f"v{version}: {artifact}, mean {mean:.4g}"
                self._marks.append(Mark(entry.seq, at, "commit", text, version, artifact, item))
            case ev.Provisional() | ev.Confirmed() | ev.RolledBack():
                self._mark_early(entry.seq, at, entry.event)
            case ev.SettingChanged(knob, old, new, by, why):
                text = f"{knob}: {worded(old)} → {worded(new)} ({by}{f': {why}' if why else ''})"
                self._marks.append(Mark(entry.seq, at, "setting", text))
            case ev.DepthChanged(old, new, why):
                self._marks.append(Mark(entry.seq, at, "depth", f"effective depth {old} → {new} ({why})"))
            case event:
                if plain := _plain_mark(event):
                    self._marks.append(Mark(entry.seq, at, *plain))

    def _mark_early(self, seq: int, at: float, event: ev.Provisional | ev.Confirmed | ev.RolledBack) -> None:
        """A provisional artifact joins, stays, or leaves."""
        match event:
            case ev.Provisional(version, artifact, item, _, scores, examples):
                mean = self._folding.state.pool.members[artifact].mean
                text = f"v{version}: {artifact} joins provisionally, {mean:.4g} on {len(scores)} of {examples} examples"
                self._marks.append(Mark(seq, at, "provisional", text, version, artifact, item))
            case ev.Confirmed(artifact, item):
                member = self._folding.state.pool.members[artifact]
                text = f"{artifact} of v{member.version} is confirmed, mean {member.mean:.4g}"
                self._marks.append(Mark(seq, at, "confirmed", text, member.version, artifact, item))
            case ev.RolledBack(version, artifact, item, reason, derived):
                made = f"; made from it: {', '.join(derived)}" if derived else ""
                text = f"v{version}: {artifact} is rolled back ({reason}{made})"
                self._marks.append(Mark(seq, at, "rolled back", text, version, artifact, item))

    def _count_queues(self, event: Event, at: float) -> None:
        match event:
            case ev.RunStarted() | ev.ItemMade() | ev.ItemQueued() | ev.ItemEnded() | ev.JobStarted():
                for stage, queue in self._folding.state.queues.items():
                    self._queues.setdefault(stage, Steps()).put(at, len(queue))
            case _:
                pass


def _plain_mark(event: Event) -> tuple[MarkKind, str] | None:
    """Kind and text of the marks that need no look at the state."""
    match event:
        case ev.Paused(by):
            return "pause", f"paused ({by})"
        case ev.Continued(by):
            return "continue", f"continued ({by})"
        case ev.Stepped(jobs, stage):
            return "step", f"step of {jobs} {'job' if jobs == 1 else 'jobs'}{f' of {stage}' if stage else ''}"
        case ev.SlotsChanged(stage, old, new, why, by):
            return "setting", f"slots of {stage}: {old} → {new} ({by}: {why})"
        case ev.RunResumed(created):
            return "resume", f"resumed ({created})"
        case ev.RunStopped(kind, reason):
            return "stop", f"stopped ({kind}): {reason}"
        case ev.Warned(kind, message):
            return "warning", f"{kind}: {message}"
        case _:
            return None
