"""The two pure questions of the loop: what did this mean (`decide`), and what may start now (`plan`).

Owns every decision of a run that is not an algorithm's or a policy's own. Owns no I/O: both return events, which the shell
appends, applies and then acts on. One rule a change must keep: a decision sits here (or in a policy), never beside an ``await``.

`plan` returns one decision at a time; the shell calls it until it returns nothing, so that each sees the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flashevolve_lab.core import completing
from flashevolve_lab.core import events as ev
from flashevolve_lab.core import inputs as on
from flashevolve_lab.core.artifacts import NOTHING, Item, NewItem, Pace, Situation, Spend, Starts, Verdict
from flashevolve_lab.core.events import Event
from flashevolve_lab.core.gating import weighed
from flashevolve_lab.core.graph import Commit, Route, Rules, Stage, Trial
from flashevolve_lab.core.joining import asked, parted, put_back, taken_along, target
from flashevolve_lab.core.reviewing import full_depth, review, slots_of
from flashevolve_lab.core.state import RunState

RETRIES = 1  # a job whose work is worth another try gets that many
MAX_IDLE = 100  # proposals in a row, skipped or refused, after which nothing is left to learn
PATCHES = 2  # a stale item is patched at most this often
ACTIONS = ("accept", "update", "patch", "discard")


def decide(state: RunState, given: on.Input, at: float, rules: Rules) -> list[Event]:
    """What an input means, as events. Does not change the state."""
    return completing.with_roll_backs(state, _decided(state, given, rules))


def _decided(state: RunState, given: on.Input, rules: Rules) -> list[Event]:
    match given:
        case on.Start(run):
            return _start(run, rules)
        case on.Resume():
            return _resume(state, given)
        case on.SetKnobs():
            return _set_knobs(state, given)
        case on.Pause(by):
            return _pause(state, by)
        case on.Continue(by):
            return [ev.Continued(by)] if state.status == "paused" else []
        case on.Step(jobs, stage):
            return [ev.Stepped(jobs, stage)] if state.status == "paused" else []
        case on.Stop():
            return _stop(state, given)
        case on.JudgeByHand():
            return _judge_by_hand(state, given, rules)
        case on.Inject(parent, components):
            return list(rules.algorithm.inject(state, parent, components)) if state.status != "stopped" else []
        case ev.Warned() | ev.LimitChanged() | ev.ServerSeen():
            return [given]
        case on.CallWanted():
            return _call_wanted(state, given)
        case ev.CallFinished(call):
            return [given] if call in state.calls else []
        case on.JobDone(job, result):
            return _job_done(state, job, result, rules)
        case on.JobBroke():
            return _job_broke(state, given, rules)
        case on.LateWanted():
            return _late_wanted(state, given)
        case on.JobReleased(job, result, why):
            return _job_released(state, job, result, why, rules)
        case ev.SampleScored(job):
            return _sampled(state, given, rules) if job in state.jobs else []
        case ev.SampleFailed(job):
            return [given] if job in state.jobs else []


def plan(state: RunState, at: float, rules: Rules) -> list[Event]:
    """The next thing that should happen by itself: a verdict, a job, a new proposal, or the end of the run; [] when nothing."""
    if state.status == "stopped" or state.started is None:
        return []
    if ending := _should_end(state, at, rules):
        return _stop(state, ending)
    if state.status == "paused" and state.step_jobs <= 0:
        return []
    starts = _next_job(state, rules) or _new_proposals(state, rules) or review(state, at, rules) or _ending(state, rules)
    return completing.with_roll_backs(state, starts)


# --- inputs ---------------------------------------------------------------------------------------------------------------


def _start(run: ev.RunStarted, rules: Rules) -> list[Event]:
    artifact, item = rules.algorithm.seed()
    return [run, artifact, ev.ItemMade("p0", item.kind, item.stage, item.base, 0, item.data)]


def _resume(state: RunState, given: on.Resume) -> list[Event]:
    lost = _closed_calls(state, None, "lost with its process")
    for job in reversed(state.jobs.values()):  # each goes in front of the one before: the oldest ends up first
        lost += [ev.JobLost(job.id), *([] if job.released else put_back(job))]
    return [*lost, ev.RunResumed(given.created, given.llm)]


def _set_knobs(state: RunState, given: on.SetKnobs) -> list[Event]:
    changes: list[Event] = []
    for knob, new in given.values.items():
        old = state.budget if knob == "budget" else state.settings.get(knob)
        if knob == "budget":
            new = _affordable(state, new)
        if old != new:
            changes.append(ev.SettingChanged(knob, old, new, given.by, given.why))
    return changes


def _affordable(state: RunState, limits: Mapping[str, float]) -> dict[str, float]:
    """A budget is never below what is spent or promised already."""
    committed = (state.spent + state.reserved).as_dict()
    return {name: max(limit, committed.get(name, 0)) for name, limit in limits.items()}


def _pause(state: RunState, by: str) -> list[Event]:
    """Pause; a second pause takes back what a step still allows."""
    if state.status == "paused":
        return [ev.Stepped(0)] if state.step_jobs else []
    return [ev.Paused(by)] if state.status == "running" else []


def _stop(state: RunState, given: on.Stop) -> list[Event]:
    if state.status == "stopped":
        return []
    ended = _closed_calls(state, None, "cancelled by the stop")
    for job in reversed(state.jobs.values()):  # each goes in front of the one before: the oldest ends up first
        ended.append(ev.JobAbandoned(job.id, given.reason, still_running=job.id in given.threads))
        if not job.released:
            ended += put_back(job)
    ended += completing.all_rolled_back(state, "the run stopped before it was fully scored")
    return [*ended, ev.RunStopped(given.kind, given.reason)]


def _call_wanted(state: RunState, given: on.CallWanted) -> list[Event]:
    job = state.jobs.get(given.job)
    if job is None or (state.status == "paused" and not job.stepped) or state.room(given.reserve):
        return []
    call = state.next_id("c")
    given_to = (given.job, given.role, given.key, given.attempt, given.reserve, given.request, given.prompt, given.hedge)
    return [ev.CallStarted(call, *given_to)]


def _job_done(state: RunState, job_id: str, result: object, rules: Rules) -> list[Event]:
    job = state.jobs.get(job_id)
    if job is None:
        return []
    assert isinstance(result, dict)
    finished: list[Event] = [*_closed_calls(state, job_id, "its job ended"), ev.JobFinished(job_id, result)]
    if job.released:
        return finished
    item = state.items[job.item]
    return finished + _routed(state, item, job.stage, rules.algorithm.route(state, item, job.stage, result), rules)


def _job_broke(state: RunState, given: on.JobBroke, rules: Rules) -> list[Event]:
    job = state.jobs.get(given.job)
    if job is None:
        return []
    events = _closed_calls(state, job.id, "its job failed")
    events.append(ev.JobFailed(given.job, given.kind, given.message, given.raw))
    if job.released:
        return events
    if job.also:
        return events + parted(job)
    item = state.items[job.item]
    if given.again and item.tries < RETRIES:
        return [*events, ev.ItemQueued(item.id, job.stage, retry=True)]
    if job.stage == "patch":
        return [*events, *_unpatched(state, item, given, rules)]
    if item.kind == "seed":
        last = f"; the last: {state.last_failure}" if given.kind == "samples" and state.last_failure else ""
        reason = f"the seed could not be scored: {given.message}{last}"
        kind = "budget" if given.kind == "budget" else "failures"
        return [*events, ev.ItemQueued(item.id, job.stage), ev.RunStopped(kind, reason)]
    outcome: ev.ItemOutcome = "refused" if given.kind in REFUSALS else "unaffordable" if given.kind == "budget" else "failed"
    return [*events, ev.ItemEnded(item.id, outcome, f"{job.stage}: {given.message}", item.data.get("child", ""))]


def _late_wanted(state: RunState, given: on.LateWanted) -> list[Event]:
    job = state.jobs.get(given.job)
    if job is None or job.item in state.taken:
        return []
    component = str(state.items[job.item].data["component"])
    count = min(given.most, len(state.late.get(component, ())))
    return [ev.LateTaken(job.item, component, count)] if count > 0 else []


def _job_released(state: RunState, job_id: str, result: Mapping[str, Any], why: str, rules: Rules) -> list[Event]:
    """The item goes on with a partial result; the tail of its job keeps the slot."""
    job = state.jobs.get(job_id)
    if job is None or job.released:
        return []
    item = state.items[job.item]
    route = rules.algorithm.route(state, item, job.stage, result)
    return [ev.Released(job_id, result, why), *_routed(state, item, job.stage, route, rules)]


def _sampled(state: RunState, given: ev.SampleScored, rules: Rules) -> list[Event]:
    """A sample, and what the completion policy makes of the job's partial result."""
    try:
        ruled = completing.ruled(state, given, rules)
    except Exception as error:  # a policy from a notebook cell may raise anything; then the job waits for its whole result
        failed = f"the completion policy failed, so everything waits for its whole result: {type(error).__name__}: {error}"
        return [given] if state.counts["warning: completion"] else [given, ev.Warned("completion", failed)]
    if ruled is None:
        return [given]
    job, ruling, partial, scores = ruled
    item = state.items[job.item]
    if ruling.action == "insert":
        return [given, completing.inserted(state, item, ruling, scores, partial)]
    if ruling.action == "release":
        seen = {"seen": list(scores), "scores": list(scores.values())}
        return [given, *_job_released(state, job.id, seen, ruling.reason, rules)]
    proven = completing.proven(job, item, partial, ruling)
    ended = [*_closed_calls(state, job.id, "it can no longer win"), ev.JobFinished(job.id, {"proven": True})]
    moves = rules.algorithm.outdone(state, item, job.stage, partial, ruling.reason)
    return [given, proven, *ended, *_routed(state, item, job.stage, moves, rules)]


def _unpatched(state: RunState, item: Item, given: on.JobBroke, rules: Rules) -> list[Event]:
    """The patch is refused, not the child, which passed its gate: it is gated once more, on the current counterpart."""
    situation = rules.algorithm.situation(state, item)
    reason = f"the patch could not be used ({given.kind}: {given.message}), so it is updated instead"
    child = item.data.get("child", "")
    said = ev.Patched(item.id, child, situation.counterpart, "update", reason, (), state.pool.version)
    return [said, *_routed(state, item, "patch", rules.algorithm.update(state, item, situation), rules)]


def _closed_calls(state: RunState, job: str | None, why: str) -> list[Event]:
    """What is still open (of a job, or of all) ends as cancelled, charged as reserved: nobody will hear its answer."""
    open_calls = [c for c in state.calls.values() if job in (None, c.job)]
    return [ev.CallFinished(c.id, "cancelled", c.reserved, text=f"{why}; charged as reserved") for c in open_calls]


REFUSALS = ("truncated", "unclosed", "empty", "unchanged", "duplicate", "ambiguous", "no_text")


def _routed(state: RunState, item: Item, stage: str, route: Sequence[Route], rules: Rules) -> list[Event]:
    events: list[Event] = []
    for move in route:
        if isinstance(move, Commit):
            events += _commit(state, item, stage, move, rules)
        elif isinstance(move, Trial):
            events += weighed(state, item, stage, move, rules)
        else:
            events.append(move)
    return events


def _commit(state: RunState, item: Item, stage: str, commit: Commit, rules: Rules) -> list[Event]:
    """Judge once more, then change the pool: one synchronous step, so no race is possible."""
    events: list[Event] = []
    situation = rules.algorithm.situation(state, item)
    if situation.gap > 0:
        verdict = _verdict(state, item, situation, commit, rules)
        if verdict.action != "discard" and verdict.action != "accept":
            verdict = Verdict("accept", f"already validated, so there is nothing to redo ({verdict.action}: {verdict.reason})")
        events += _policy_failed(state, verdict)
        events.append(_judged(state, item, stage, "commit", situation, verdict, commit.artifact))
        if verdict.action == "discard":
            return [*events, ev.ItemEnded(item.id, "discarded", verdict.reason, commit.artifact), *_livelock(state, rules)]
    if item.id in state.provisional:
        ends = completing.settled(state, item, commit)
        stays = any(isinstance(end, ev.Confirmed) for end in ends)
        return events + ends + (_deeper(state, rules) if stays else [])
    version = state.pool.version + 1
    scores = {str(example): score for example, score in commit.scores.items()}
    events.append(ev.Committed(version, commit.artifact, item.id, item.batch, scores, commit.examples))
    events.append(ev.ItemEnded(item.id, "committed", f"version {version}", commit.artifact))
    return events + _deeper(state, rules)


def _judge_by_hand(state: RunState, given: on.JudgeByHand, rules: Rules) -> list[Event]:
    item = state.items.get(given.item)
    if item is None or item.kind == "seed":
        return [ev.Warned("by hand", f"{given.item} has ended already: nothing to {given.action}")]
    situation = rules.algorithm.situation(state, item)
    child = item.data.get("child", "")
    verdict = Verdict("discard" if given.action == "discard" else "accept", given.reason)
    judged = replace(_judged(state, item, item.stage, "hand", situation, verdict, child), policy="by hand")
    if verdict.action == "accept" and item.stage != "patch":
        return [judged]
    job = next((job for job in state.jobs.values() if item.id in job.items and not job.released), None)
    why = f"{given.action}ed by hand"
    ended = [*_closed_calls(state, job.id, why), ev.JobAbandoned(job.id, why), *put_back(job, but=item.id)] if job else []
    if verdict.action == "accept":  # no need to be read by a model any more
        goal = next(stage.name for stage in rules.algorithm.graph.stages if stage.judged)
        return [judged, *ended, ev.ItemQueued(item.id, goal, base=state.pool.version)]
    return [judged, *ended, ev.ItemEnded(item.id, "discarded", f"by hand: {given.reason}", child)]


# --- staleness ------------------------------------------------------------------------------------------------------------


def _verdict(state: RunState, item: Item, situation: Situation, commit: Commit | None, rules: Rules) -> Verdict:
    if item.data.get("accepted_by_hand"):
        return Verdict("accept", "accepted by hand")
    stale = rules.algorithm.stale_item(state, item, situation, commit)
    policy = rules.staleness(state)
    try:
        verdict = policy.judge(stale)
        if verdict.action not in ACTIONS or not isinstance(verdict.reason, str):
            raise TypeError(f"expected a Verdict with an action of {ACTIONS} and a reason, got {verdict!r}")
    except Exception as error:  # a policy from a notebook cell may raise anything; it must not end the run
        return Verdict("accept", f"{FAILED} {type(policy).__name__} failed: {type(error).__name__}: {error}")
    if verdict.action == "update" and item.updates and commit is None:
        return Verdict("discard", f"updated once already, and stale again: {verdict.reason}")
    if verdict.action == "patch" and item.kind == "merge":
        return Verdict("accept", f"accepted, for no patch rewrites what was merged of several components: {verdict.reason}")
    if verdict.action == "patch" and item.patches >= PATCHES:
        return Verdict("discard", f"patched {item.patches} times already, and stale again: {verdict.reason}")
    if verdict.action == "patch" and "patch" not in rules.algorithm.graph.names:
        return Verdict("accept", f"accepted because this algorithm has no patch stage: {verdict.reason}")
    return verdict


FAILED = "accepted because the policy"


def _policy_failed(state: RunState, verdict: Verdict) -> list[Event]:
    """Said once, aloud: otherwise a broken policy would quietly be `Full`."""
    if not verdict.reason.startswith(FAILED) or state.counts["warning: policy"]:
        return []
    return [ev.Warned("policy", verdict.reason)]


def _judged(
    state: RunState, item: Item, stage: str, where: str, situation: Situation, verdict: Verdict, artifact: str
) -> ev.StalenessJudged:
    described = state.settings["staleness"]
    return ev.StalenessJudged(
        item=item.id,
        artifact=artifact,
        stage=stage,
        where=where,
        base=item.base,
        version=state.pool.version,
        gap=situation.gap,
        touched=situation.touched,
        superseded=situation.superseded,
        counterpart=situation.counterpart,
        action=verdict.action,
        reason=verdict.reason,
        policy=str(described.get("name", described)),
        why=situation.why,
        target=target(situation, verdict),
    )


def _judge_waiting(state: RunState, item: Item, stage: Stage, rules: Rules) -> tuple[list[Event], bool]:
    """The verdict on an item about to be taken from a judged queue and what follows, and whether it goes on as it is."""
    if item.id in state.provisional:  # its text is in the pool: it is judged once more at its commit
        return [], True
    situation = rules.algorithm.situation(state, item)
    if situation.gap <= 0:
        return [], True
    verdict = _verdict(state, item, situation, None, rules)
    artifact = item.data.get("child", "")
    events: list[Event] = _policy_failed(state, verdict)
    events.append(_judged(state, item, stage.name, "dequeue", situation, verdict, artifact))
    if verdict.action == "discard":
        return [*events, ev.ItemEnded(item.id, "discarded", verdict.reason, artifact), *_livelock(state, rules)], False
    if verdict.action == "update":
        return events + _routed(state, item, stage.name, rules.algorithm.update(state, item, situation), rules), False
    if verdict.action == "patch":
        return [*events, ev.ItemQueued(item.id, "patch", asked(item, situation, verdict))], False
    return events, True


def _depth(state: RunState, rules: Rules) -> int:
    depth = full_depth(state, rules)
    return depth if state.effective_depth is None else min(depth, state.effective_depth)


def _livelock(state: RunState, rules: Rules) -> list[Event]:
    """After 2 × depth discards in a row the effective depth halves."""
    depth = _depth(state, rules)
    if depth <= 1 or state.gap_discards + 1 < 2 * depth:
        return []
    why = f"{state.gap_discards + 1} stale items in a row were discarded: fewer in flight means smaller gaps"
    return [ev.DepthChanged(depth, depth // 2, why)]


def _deeper(state: RunState, rules: Rules) -> list[Event]:
    """A commit lets an effective depth grow by one again, up to the schedule's."""
    now, full = state.effective_depth, full_depth(state, rules)
    if now is None or now >= full:
        return []
    return [ev.DepthChanged(now, now + 1, "a commit: one more may be in flight again")]


# --- starting -------------------------------------------------------------------------------------------------------------


def _free_slot(state: RunState, stage: str, rules: Rules) -> int | None:
    taken = state.slots[stage]
    if len(taken) >= slots_of(state, stage, rules):
        return None
    return next(n for n in range(len(taken) + 1) if n not in taken)


def _steps(state: RunState, stage: str) -> bool:
    return state.status != "paused" or state.step_stage in ("", stage)


def _next_job(state: RunState, rules: Rules) -> list[Event]:
    """The next job (or verdict), work nearest to a commit first."""
    for stage in reversed(rules.algorithm.graph.stages):
        queue = state.queues[stage.name]
        if not queue or not _steps(state, stage.name):
            continue
        slot = _free_slot(state, stage.name, rules)
        if slot is None:
            continue
        item = state.items[queue[0]]
        also = taken_along(state, item, stage.name, rules)
        need = sum((rules.algorithm.need(state, state.items[one], stage.name) for one in also or ()), NOTHING)
        need += rules.algorithm.need(state, item, stage.name)
        if also is None or state.room(need):
            continue
        events, goes_on = _judge_waiting(state, item, stage, rules) if stage.judged else ([], True)
        return [*events, _job_started(state, stage, slot, item, need, also, rules)] if goes_on else events
    return []


def _job_started(
    state: RunState, stage: Stage, slot: int, item: Item, need: Spend, also: tuple[str, ...], rules: Rules
) -> ev.JobStarted:
    first = completing.prefix_of(state, item, stage.name, rules)
    paused = state.status == "paused"
    return ev.JobStarted(state.next_id("j"), stage.name, slot, item.id, state.pool.version, need, paused, first, also)


def _new_proposals(state: RunState, rules: Rules) -> list[Event]:
    """New proposals, as the schedule, the free slots of the entry stage and the budget allow."""
    entry = rules.algorithm.graph.entry
    if state.pool.version < 0 or not _steps(state, entry):
        return []
    try:
        starts = _admitted(state, rules)
    except Exception as error:  # a schedule from a notebook cell may raise anything; what is in flight finishes first
        failed = f"the schedule {type(rules.schedule(state)).__name__} failed: {type(error).__name__}: {error}"
        return [] if state.items else _stop(state, on.Stop("failures", failed))
    if starts.count <= 0 or state.exhausted or state.idle_ends >= MAX_IDLE:
        return []
    count = _bounded(state, starts, entry, rules)
    if count <= 0 or state.room(rules.algorithm.proposal_need(state) + Spend(proposals=1)):
        return []
    if starts.together:
        return _batch(state, starts, count, rules)
    new = rules.algorithm.begin(state, (), None)
    return [] if new is None else _made(state, new)


def _made(state: RunState, new: NewItem) -> list[Event]:
    """The new item, and the text that is made with it (if any)."""
    item = ev.ItemMade(state.next_id("p"), new.kind, new.stage, new.base, state.batches + 1, new.data)
    if (text := new.artifact) is None:
        return [item]
    return [
        ev.ArtifactMade(text.id, text.components, text.hash, text.parents, text.origin, text.component, text.item),
        item,
    ]


def _admitted(state: RunState, rules: Rules) -> Starts:
    starts = rules.schedule(state).admits(Pace(state.in_flight, state.pool.version))
    if not isinstance(starts, Starts) or starts.per_parent < 1:
        raise TypeError(f"expected Starts(count, per_parent ≥ 1), got {starts!r}")
    return starts


def _bounded(state: RunState, starts: Starts, entry: str, rules: Rules) -> int:
    count = min(starts.count, _depth(state, rules) - state.in_flight)
    if starts.together:
        return count
    free = slots_of(state, entry, rules) - len(state.slots[entry]) - len(state.queues[entry])
    return min(count, free)


def _batch(state: RunState, starts: Starts, count: int, rules: Rules) -> list[Event]:
    """A whole batch at once: its parents are all drawn now, from the same front."""
    events: list[Event] = []
    drawn: list[Item] = []
    one = rules.algorithm.proposal_need(state) + Spend(proposals=1)
    for i in range(count):
        parent = drawn[-1].data["parent"] if i % starts.per_parent else None
        new = rules.algorithm.begin(state, drawn, parent)
        if new is not None and new.artifact is not None:  # a merge takes its turn alone
            return _made(state, new)
        if new is None or (i and state.room(_times(one, i + 1))):
            break
        id = state.next_id("p", i)
        drawn.append(Item(id, new.kind, new.base, state.batches + 1, dict(new.data), new.stage, 0.0))
        events.append(ev.ItemMade(id, new.kind, new.stage, new.base, state.batches + 1, new.data))
    return events


def _times(spend: Spend, n: int) -> Spend:
    return Spend(spend.metric_calls * n, spend.llm_calls * n, spend.tokens * n, spend.dollars * n, spend.proposals * n)


# --- ending ---------------------------------------------------------------------------------------------------------------


def _should_end(state: RunState, at: float, rules: Rules) -> on.Stop | None:
    """Reasons to stop at once: the deadline, or failures in a row."""
    seconds = state.budget.get("seconds")
    if seconds is not None and at >= seconds - 2e-6:  # the shell's times are whole microseconds: it may wake just before
        return on.Stop("budget", f"seconds: the {seconds:g} s of the budget are over")
    if not state.streaks:
        return None
    limit = max(state.settings.get("max_failures", 20), 2 * _depth(state, rules))
    for what, count in state.streaks.items():
        if count >= limit:
            return on.Stop("failures", f"{count} failures in a row ({what}); the last: {state.last_failure}")
    return None


def _ending(state: RunState, rules: Rules) -> list[Event]:
    """The end of a run in which nothing runs and nothing further can start."""
    if state.jobs or state.status == "paused":
        return []
    for stage, queue in state.queues.items():
        for waiting in queue:
            if short := state.room(rules.algorithm.need(state, state.items[waiting], stage)):
                return _unaffordable(state, waiting, short)
    if state.items:
        return []
    return _stop(state, _why_done(state, rules))


def _why_done(state: RunState, rules: Rules) -> on.Stop:
    short = state.room(rules.algorithm.proposal_need(state) + Spend(proposals=1))
    if short:
        used, limit = getattr(state.spent, short), state.budget[short]
        return on.Stop("budget", f"{short}: {used:,.10g} of {limit:,.10g} used; another proposal would not fit")
    if state.exhausted:
        return on.Stop("budget", state.exhausted)
    if state.idle_ends >= MAX_IDLE:
        skipped, tried = state.counts["skipped"], state.counts["refused"]
        kinds = f"{skipped} skipped on minibatches already perfect and {tried} refused as texts already tried, in all"
        idle = f"{state.idle_ends} proposals in a row led nowhere ({kinds})"
        return on.Stop("done", f"{idle}: nothing left to learn from this train set")
    return on.Stop("done", "neither the schedule nor the algorithm starts a further proposal")


def _unaffordable(state: RunState, item: str, short: str) -> list[Event]:
    child = state.items[item].data.get("child", "")
    return [ev.ItemEnded(item, "unaffordable", f"what is left of the budget of {short} does not cover its next stage", child)]
