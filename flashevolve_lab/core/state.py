"""The state of a run: a fold over its events, and the invariants it must keep.

Owns `RunState`, `apply` (its only writer) and `check`. Queues, worker slots, reservations and settings are data here, so "why is
this item waiting" is a look, not a guess. One rule a change must keep: `apply` reads nothing but the state and the event, so a
log folded anywhere, by anyone, gives the same state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashevolve_lab.core import events as ev
from flashevolve_lab.core.artifacts import NOTHING, Answer, Artifact, Call, Item, Job, Rejection, Sample, Spend
from flashevolve_lab.core.events import Entry, Event
from flashevolve_lab.core.meters import MEASURES, Meters
from flashevolve_lab.core.population import Member, Population
from flashevolve_lab.errors import InvariantError

MOST_REJECTIONS = 16  # children rejected of one parent and component that are remembered, the newest
MOST_REMEMBERED = 1_000  # parents and components of which they are
IN_FLIGHT = ("proposal", "merge")  # kinds of items whose number the schedule bounds


CALLS_OF_A_PROPOSAL = 4  # of sequential GEPA 2.8 to 4.5 were in flight in the mean (100 validation samples)


@dataclass(slots=True)
class RunState:
    """Everything known about a run after some entry of its log.

    Each field's invariant stands beside it; `check` tests them.
    """

    seq: int = 0  # number of the last entry applied
    at: float = 0.0  # its time; never falls
    started: ev.RunStarted | None = None  # None only before the first entry
    llms: list[Mapping[str, Any]] = field(default_factory=list)  # role → models: at the start, then as of each resume
    status: str = "new"  # new → running ⇄ paused → stopped (→ running again by a resume)
    stop: ev.RunStopped | None = None  # set exactly while stopped
    settings: dict[str, Any] = field(default_factory=dict)  # knob → effective value (JSON)
    budget: dict[str, float] = field(default_factory=dict)  # dimension → limit; absent: unlimited
    artifacts: dict[str, Artifact] = field(default_factory=dict)  # every text ever made, by id
    by_hash: dict[str, str] = field(default_factory=dict)  # content hash → first artifact with it
    pool: Population = field(default_factory=Population)  # the committed ones
    items: dict[str, Item] = field(default_factory=dict)  # not ended: waiting or being worked on
    queues: dict[str, deque[str]] = field(default_factory=dict)  # stage → waiting items, next first
    jobs: dict[str, Job] = field(default_factory=dict)  # running; each holds one slot, and one item or (a join) several
    slots: dict[str, dict[int, str]] = field(default_factory=dict)  # stage → slot number → job
    calls: dict[str, Call] = field(default_factory=dict)  # sent and not yet answered
    answers: dict[tuple[str, str], dict[str, Answer]] = field(
        default_factory=dict
    )  # (item, stage) not done → call's key → reply
    spent: Spend = NOTHING  # only grows
    reserved: Spend = NOTHING  # the sum of what running jobs and open calls hold
    samples: dict[tuple[str, str], dict[int, Sample]] = field(default_factory=dict)  # (hash, split) → example → sample
    starts: Counter[str] = field(
        default_factory=Counter
    )  # artifact → turns taken: those it was born with, and each proposal started on it
    cursor: Any = None  # where the algorithm's sampler stands (its own JSON)
    in_flight: int = 0  # proposals and merges begun and not ended
    rejections: dict[tuple[str, str], tuple[Rejection, ...]] = field(
        default_factory=dict
    )  # (parent, component) → children rejected at the gate, the newest last; at most MOST_REJECTIONS of MOST_REMEMBERED
    late: dict[str, tuple[str, ...]] = field(default_factory=dict)  # component → reflections that missed their window, not used
    taken: dict[str, tuple[str, ...]] = field(default_factory=dict)  # item → late reflections that its window has taken in
    merges: list[tuple[str, str]] = field(default_factory=list)  # the pairs of parents of every merge begun
    batches: int = 0  # batches begun
    made: Counter[str] = field(default_factory=Counter)  # ids handed out, by letter
    counts: Counter[str] = field(default_factory=Counter)  # outcomes, failures by kind, actions: for people
    streaks: Counter[str] = field(default_factory=Counter)  # failures in a row, by "stage: kind"
    failed_item: str = ""  # the item of the last failed job: its end is a failure, not idleness
    last_failure: str = ""  # the message of the last failed job or sample
    last_call_failure: str = ""  # what the last call that brought no reply ended with
    exhausted: str = ""  # set once a call could never fit what is left of the budget: nothing new starts
    idle_ends: int = 0  # items skipped or refused since the last gate verdict (failures in between change nothing)
    gap_discards: int = 0  # discards in a row by the staleness policy
    effective_depth: int | None = None  # below the schedule's depth only against livelock
    auto_depth: int | None = None  # what a schedule with depth "auto" has found so far, or was begun with
    given: dict[str, int] = field(default_factory=dict)  # stage → slots a worker policy gave it; a setting by hand goes first
    ceiling: int | None = None  # the concurrency as a person last set it
    meters: Meters = field(default_factory=Meters)  # what reviews go by
    limits: dict[str, int] = field(default_factory=dict)  # server → calls in flight it is given, where that has moved
    provisional: dict[str, str] = field(default_factory=dict)  # item → the artifact it has in the pool before its time
    servers: dict[str, ev.ServerSeen] = field(default_factory=dict)  # server → what it last said of itself
    step_jobs: int = 0  # jobs a step still allows
    step_stage: str = ""  # "" = any stage

    def apply_all(self, entries: Iterable[Entry]) -> RunState:
        """Fold further entries; returns itself."""
        for entry in entries:
            apply(self, entry)
        return self

    def next_id(self, letter: str, ahead: int = 0) -> str:
        """The id the next one of its kind will get ("a" artifact, "p" item, "j" job, "c" call)."""
        return f"{letter}{self.made[letter] + ahead}"

    def sample(self, artifact: str, split: str, example: int) -> Sample | None:
        """The cached sample of this text on this example, or None."""
        return self.samples.get((self.artifacts[artifact].hash, split), {}).get(example)

    @property
    def opening_depth(self) -> int:
        """A first guess of the proposals that fill the server: one alone has about four calls in flight in the mean."""
        return int(self.settings.get("concurrency") or 0) // CALLS_OF_A_PROPOSAL

    def room(self, ask: Spend, *, released: bool = False) -> str:
        """The dimension in which ``ask`` does not fit the budget, or "" (``released``: as if nothing were reserved)."""
        for name, limit in self.budget.items():
            wanted = getattr(ask, name, 0)
            held = getattr(self.spent, name, 0) + (0 if released else getattr(self.reserved, name, 0))
            if wanted and held + wanted > limit + 1e-9:
                return name
        return ""


def apply(state: RunState, entry: Entry) -> None:
    """Fold one entry into the state: the only writer."""
    kind = type(entry.event)
    _APPLY[kind](state, entry.event, entry.at)
    if measure := MEASURES.get(kind):
        measure(state, entry.event, entry.at)
    state.seq, state.at = entry.seq, max(state.at, entry.at)


def _run_started(s: RunState, e: ev.RunStarted, at: float) -> None:
    s.started, s.status, s.llms = e, "running", [e.llm]
    s.settings, s.budget = dict(e.settings), dict(e.budget)
    s.ceiling = s.settings.get("concurrency")
    for stage in e.stages:
        s.queues[stage], s.slots[stage] = deque(), {}


def _run_resumed(s: RunState, e: ev.RunResumed, at: float) -> None:
    s.status, s.stop, s.step_jobs, s.idle_ends = "running", None, 0, 0
    s.streaks.clear()
    s.limits.clear()  # the gateway begins anew
    s.servers.clear()  # what they said before is long ago
    if e.llm:
        s.llms.append(e.llm)


def _setting_changed(s: RunState, e: ev.SettingChanged, at: float) -> None:
    if e.knob == "budget":
        s.budget, s.exhausted = dict(e.new), ""
        return
    s.settings[e.knob] = e.new
    if e.knob == "concurrency":
        s.limits.clear()
    if e.knob == "schedule":
        s.effective_depth, s.gap_discards = None, 0
        before = e.old.get("depth") if isinstance(e.old, Mapping) else None
        s.auto_depth = before if isinstance(before, int) else s.auto_depth
    if e.knob == "workers":
        s.given.clear()


def _paused(s: RunState, e: ev.Paused, at: float) -> None:
    s.status, s.step_jobs = "paused", 0


def _continued(s: RunState, e: ev.Continued, at: float) -> None:
    s.status, s.step_jobs = "running", 0
    for job in s.jobs.values():
        job.stepped = False  # the next pause holds it like any other


def _stepped(s: RunState, e: ev.Stepped, at: float) -> None:
    s.step_jobs, s.step_stage = e.jobs, e.stage


def _warned(s: RunState, e: ev.Warned, at: float) -> None:
    s.counts[f"warning: {e.kind}"] += 1


def _item_made(s: RunState, e: ev.ItemMade, at: float) -> None:
    data = dict(e.data)
    s.cursor = data.pop("cursor", s.cursor)
    s.items[e.item] = Item(e.item, e.kind, e.base, e.batch, data, e.stage, at)
    s.queues[e.stage].append(e.item)
    s.made["p"] += 1
    s.batches = max(s.batches, e.batch)
    s.in_flight += e.kind in IN_FLIGHT
    if e.kind == "merge":
        s.merges.append((data["parent"], data["other"]))
    if e.kind == "proposal":
        s.reserved += Spend(proposals=1)
    if e.kind == "proposal" and (parent := data.get("parent")):
        s.starts[parent] += 1


def _item_queued(s: RunState, e: ev.ItemQueued, at: float) -> None:
    item = s.items[e.item]
    if item.id in s.queues[item.stage]:
        s.queues[item.stage].remove(item.id)
    item.data.update(e.data)
    item.tries = item.tries + 1 if e.retry else 0
    if e.base is not None:
        item.base = e.base
    item.stage, item.queued_at = e.stage, at
    if e.front:
        s.queues[e.stage].appendleft(item.id)
    else:
        s.queues[e.stage].append(item.id)


def _item_ended(s: RunState, e: ev.ItemEnded, at: float) -> None:
    item = s.items.pop(e.item)
    if untaken := s.taken.pop(e.item, ()):  # its window never closed: they wait for the next one
        component = str(item.data["component"])
        s.late[component] = (*untaken, *s.late.get(component, ()))
    if item.id in s.queues[item.stage]:
        s.queues[item.stage].remove(item.id)
    s.answers.pop((item.id, item.stage), None)
    s.counts[e.outcome] += 1
    s.in_flight -= item.kind in IN_FLIGHT
    if item.kind == "proposal" and not item.gated:
        s.reserved -= Spend(proposals=1)
    s.idle_ends += e.outcome == "skipped" or (e.outcome == "refused" and s.failed_item != e.item)  # only a verdict begins anew
    if e.outcome == "skipped":  # it changed nothing: the next proposal on this parent takes its turn
        s.starts[item.data["parent"]] -= 1


def _job_started(s: RunState, e: ev.JobStarted, at: float) -> None:
    s.jobs[e.job] = Job(e.job, e.stage, e.slot, e.item, e.version, at, e.reserved, e.stepped, e.first, also=e.also)
    s.slots[e.stage][e.slot] = e.job
    for item in (e.item, *e.also):
        s.queues[e.stage].remove(item)
    s.reserved += e.reserved
    s.made["j"] += 1
    if e.stepped:
        s.step_jobs -= 1


def _end_job(s: RunState, job: str) -> Job:
    ended = s.jobs.pop(job)
    del s.slots[ended.stage][ended.slot]
    s.reserved -= ended.reserved
    return ended


def _job_finished(s: RunState, e: ev.JobFinished, at: float) -> None:
    job = _end_job(s, e.job)
    if not job.released:
        _close_window(s, job, e.result)
        s.answers.pop((job.item, job.stage), None)
    for key in [k for k in s.streaks if k.startswith(job.stage + ": ")]:
        del s.streaks[key]


def _job_failed(s: RunState, e: ev.JobFailed, at: float) -> None:
    job = _end_job(s, e.job)
    s.counts[f"failed {job.stage}: {e.kind}"] += 1
    s.failed_item = s.failed_item if job.released else job.item
    if e.kind == "budget":
        s.exhausted = e.message
        return
    s.streaks[f"{job.stage}: {e.kind}"] += 1
    if e.kind != "samples":  # then a sample has said why already
        s.last_failure = e.message


def _job_abandoned(s: RunState, e: ev.JobAbandoned, at: float) -> None:
    _end_job(s, e.job)
    s.counts["abandoned"] += 1


def _job_lost(s: RunState, e: ev.JobLost, at: float) -> None:
    _end_job(s, e.job)
    s.counts["lost"] += 1


def _call_started(s: RunState, e: ev.CallStarted, at: float) -> None:
    s.calls[e.call] = Call(e.call, e.job, e.role, e.key, e.attempt, e.reserved, at, e.request)
    s.reserved += e.reserved
    s.made["c"] += 1
    s.meters.call(e.role, e.job, s.jobs[e.job].stage, 1, at)


def _call_finished(s: RunState, e: ev.CallFinished, at: float) -> None:
    call = s.calls.pop(e.call)
    s.meters.call(call.role, call.job, "", -1, at)
    s.reserved -= call.reserved
    s.spent += e.spent
    if e.outcome != "ok":
        s.counts[f"call {e.outcome}"] += 1
        s.last_call_failure = e.text if e.outcome != "cancelled" else s.last_call_failure
        return
    s.meters.answer(call.role, at - call.started_at)
    job = s.jobs[call.job]
    if job.released:
        if call.key.split("#")[0] in job.open:
            _carry(s, job.topic, e.text)
        return
    answer = Answer(call.request, e.text, e.finish, e.model, e.prompt_tokens, e.completion_tokens)
    s.answers.setdefault((job.item, job.stage), {})[call.key] = answer


def _charge_metric_call(s: RunState, job_id: str) -> None:
    one = Spend(metric_calls=1)
    s.spent += one
    job = s.jobs.get(job_id)
    if job is not None and job.reserved.metric_calls > 0:
        job.reserved -= one
        s.reserved -= one


def _sample_scored(s: RunState, e: ev.SampleScored, at: float) -> None:
    _charge_metric_call(s, e.job)
    kept = Sample(e.score, e.output, e.feedback) if e.split == "train" else Sample(e.score)
    s.samples.setdefault((s.artifacts[e.artifact].hash, e.split), {})[e.example] = kept
    s.streaks.pop("samples", None)


def _sample_failed(s: RunState, e: ev.SampleFailed, at: float) -> None:
    _charge_metric_call(s, e.job)
    s.counts[f"failed sample: {e.kind}"] += 1
    s.streaks["samples"] += 1
    s.last_failure = e.message


def _artifact_made(s: RunState, e: ev.ArtifactMade, at: float) -> None:
    s.artifacts[e.artifact] = Artifact(e.artifact, e.components, e.hash, e.parents, e.origin, e.component, e.item)
    s.by_hash.setdefault(e.hash, e.artifact)
    s.made["a"] += 1
    s.counts[f"made by {e.origin}"] += 1


def _gated(s: RunState, e: ev.Gated, at: float) -> None:
    item = s.items[e.item]
    item.data["gain"] = e.child_sum - e.parent_sum
    if e.first:
        item.gated = True
        s.reserved -= Spend(proposals=1)
        s.spent += Spend(proposals=1)
    s.counts["gate passed" if e.passed else "gate failed"] += 1
    if not e.passed and (component := s.artifacts[e.artifact].component):
        rejection = Rejection(e.artifact, e.parent_sum, e.child_sum, e.bound)
        before = s.rejections.pop((e.parent, component), ())  # put back as the last that is forgotten
        s.rejections[e.parent, component] = (*before, rejection)[-MOST_REJECTIONS:]
        if len(s.rejections) > MOST_REMEMBERED:
            del s.rejections[next(iter(s.rejections))]
    s.idle_ends = 0


def _staleness_judged(s: RunState, e: ev.StalenessJudged, at: float) -> None:
    s.counts[f"stale {e.action}"] += 1
    if e.where == "hand" and e.action == "accept":
        s.items[e.item].data["accepted_by_hand"] = True
    if e.action == "update" and e.where == "dequeue":
        s.items[e.item].updates += 1
    if e.where != "hand":
        s.gap_discards = s.gap_discards + 1 if e.action == "discard" else 0


def _patched(s: RunState, e: ev.Patched, at: float) -> None:
    s.counts[f"patch: {e.decision}"] += 1
    s.items[e.item].patches += 1


def _committed(s: RunState, e: ev.Committed, at: float) -> None:
    artifact = s.artifacts[e.artifact]
    s.starts[e.artifact] = max((s.starts[parent] for parent in artifact.parents), default=0)
    s.pool.add(_member(artifact, e.version, e.batch, e.scores, e.examples))
    s.gap_discards = 0
    s.samples.pop((artifact.hash, "val"), None)


def _member(
    artifact: Artifact, version: int, batch: int, scored: Mapping[str, float], examples: int, rival: str = ""
) -> Member:
    scores = {int(example): score for example, score in scored.items()}
    mean = sum(scores.values()) / len(scores) if scores else 0.0
    coverage = len(scores) / examples if examples else 0.0
    return Member(artifact.id, version, batch, artifact.parents, artifact.component, scores, mean, coverage, rival)


def _released(s: RunState, e: ev.Released, at: float) -> None:
    job = s.jobs[e.job]
    job.released = True
    _close_window(s, job, e.result)
    s.answers.pop((job.item, job.stage), None)
    s.counts[f"released {job.stage}"] += 1


def _close_window(s: RunState, job: Job, result: Mapping[str, Any]) -> None:
    """A join's window is closed: what it had taken in is used; the calls named ``open`` missed it, and are carried over."""
    s.taken.pop(job.item, None)
    if not (names := result.get("open")):
        return
    job.topic, job.open = str(s.items[job.item].data["component"]), tuple(names)
    for key, answer in s.answers.get((job.item, job.stage), {}).items():
        if key.split("#")[0] in job.open:  # it came while the window's own text was being written
            _carry(s, job.topic, answer.text)


def _carry(s: RunState, component: str, text: str) -> None:
    s.late[component] = (*s.late.get(component, ()), text)
    s.counts["late reflections"] += 1


def _late_taken(s: RunState, e: ev.LateTaken, at: float) -> None:
    waiting = s.late.pop(e.component)
    s.taken[e.item] = waiting[: e.count]
    if left := waiting[e.count :]:
        s.late[e.component] = left


def _proven(s: RunState, e: ev.Proven, at: float) -> None:
    s.counts[f"proven {e.stage}"] += 1


def _provisional(s: RunState, e: ev.Provisional, at: float) -> None:
    artifact = s.artifacts[e.artifact]
    s.starts[e.artifact] = max((s.starts[parent] for parent in artifact.parents), default=0)
    s.pool.add(_member(artifact, e.version, e.batch, e.scores, e.examples, e.rival))
    s.provisional[e.item] = e.artifact
    s.counts["provisional"] += 1


def _confirmed(s: RunState, e: ev.Confirmed, at: float) -> None:
    artifact, old = s.artifacts[e.artifact], s.pool.members[e.artifact]
    s.pool.confirm(_member(artifact, old.version, old.batch, e.scores, e.examples))
    del s.provisional[e.item]
    s.gap_discards = 0
    s.samples.pop((artifact.hash, "val"), None)


def _rolled_back(s: RunState, e: ev.RolledBack, at: float) -> None:
    s.pool.remove(e.artifact)
    del s.provisional[e.item]


def _depth_changed(s: RunState, e: ev.DepthChanged, at: float) -> None:
    if e.by:
        s.auto_depth = e.new
        s.effective_depth = None if (s.effective_depth or 0) >= e.old else s.effective_depth  # it no longer holds anything back
        return
    s.effective_depth = e.new
    s.gap_discards = 0


def _slots_changed(s: RunState, e: ev.SlotsChanged, at: float) -> None:
    s.given[e.stage] = e.new


def _workers_reviewed(s: RunState, e: ev.WorkersReviewed, at: float) -> None:
    s.counts["reviews"] += 1


def _limit_changed(s: RunState, e: ev.LimitChanged, at: float) -> None:
    s.limits[e.endpoint] = e.new


def _server_seen(s: RunState, e: ev.ServerSeen, at: float) -> None:
    s.servers[e.endpoint] = e


def _run_stopped(s: RunState, e: ev.RunStopped, at: float) -> None:
    s.status, s.stop, s.step_jobs = "stopped", e, 0


_APPLY: Mapping[type[Event], Callable[[RunState, Any, float], None]] = {
    ev.RunStarted: _run_started,
    ev.RunResumed: _run_resumed,
    ev.SettingChanged: _setting_changed,
    ev.Paused: _paused,
    ev.Continued: _continued,
    ev.Stepped: _stepped,
    ev.Warned: _warned,
    ev.ItemMade: _item_made,
    ev.ItemQueued: _item_queued,
    ev.ItemEnded: _item_ended,
    ev.JobStarted: _job_started,
    ev.JobFinished: _job_finished,
    ev.JobFailed: _job_failed,
    ev.JobAbandoned: _job_abandoned,
    ev.JobLost: _job_lost,
    ev.CallStarted: _call_started,
    ev.CallFinished: _call_finished,
    ev.SampleScored: _sample_scored,
    ev.SampleFailed: _sample_failed,
    ev.ArtifactMade: _artifact_made,
    ev.Gated: _gated,
    ev.StalenessJudged: _staleness_judged,
    ev.Patched: _patched,
    ev.Committed: _committed,
    ev.Released: _released,
    ev.LateTaken: _late_taken,
    ev.Proven: _proven,
    ev.Provisional: _provisional,
    ev.Confirmed: _confirmed,
    ev.RolledBack: _rolled_back,
    ev.DepthChanged: _depth_changed,
    ev.SlotsChanged: _slots_changed,
    ev.WorkersReviewed: _workers_reviewed,
    ev.LimitChanged: _limit_changed,
    ev.ServerSeen: _server_seen,
    ev.RunStopped: _run_stopped,
}


def check(state: RunState) -> None:
    """Test every invariant of the state.

    Raises:
        InvariantError: names the first that does not hold.
    """
    _check_places(state)
    _check_money(state)


def _check_places(s: RunState) -> None:
    worked_on = [item for job in s.jobs.values() if not job.released for item in job.items]
    working = set(worked_on)
    _hold(len(working) == len(worked_on), "two jobs work on one item")
    waiting = [item for queue in s.queues.values() for item in queue]
    _hold(len(waiting) == len(set(waiting)), "an item waits in two queues")
    _hold(not working & set(waiting), "an item waits and is worked on")
    _hold(working | set(waiting) == set(s.items), "an item is nowhere, or an ended one is somewhere")
    _hold(s.in_flight == sum(i.kind in IN_FLIGHT for i in s.items.values()), "the count of what is in flight is wrong")
    held = {job: (stage, slot) for stage, slots in s.slots.items() for slot, job in slots.items()}
    _hold(held == {j.id: (j.stage, j.slot) for j in s.jobs.values()}, "worker slots and running jobs disagree")
    _hold(all(call.job in s.jobs for call in s.calls.values()), "a call belongs to no running job")
    _hold(s.status == "stopped" or s.stop is None, "a stop reason without a stop")
    versions = [m.version for m in s.pool.order]
    _hold(versions == sorted(set(versions)) and (not versions or versions[-1] <= s.pool.version), "versions are out of order")
    early = {m.id for m in s.pool.order if m.rival}
    _hold(early == set(s.provisional.values()), "an artifact is provisional and no item is validating it, or the reverse")
    _hold(set(s.provisional) <= set(s.items), "an ended item still has a provisional artifact")


def _check_money(s: RunState) -> None:
    held = sum((j.reserved for j in s.jobs.values()), NOTHING) + sum((c.reserved for c in s.calls.values()), NOTHING)
    held += Spend(proposals=sum(1 for i in s.items.values() if i.kind == "proposal" and not i.gated))
    gap = held - s.reserved
    _hold(all(abs(value) < 1e-6 for value in gap.as_dict().values()), f"reservations {s.reserved} are not what is held {held}")
    for name, limit in s.budget.items():
        used = getattr(s.spent, name, 0) + getattr(s.reserved, name, 0)
        _hold(used <= limit + 1e-6, f"the budget of {limit} {name} is exceeded: {used}")


def _hold(true: bool, what: str) -> None:
    if not true:
        raise InvariantError(what)
