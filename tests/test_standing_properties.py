"""What holds for every run, whatever its schedule, policies, budget, faults and clock (style §2)."""

from __future__ import annotations

import asyncio
import dataclasses
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import Entry, Event, Rules, RunState, apply, check, content_hash, decide, inputs, plan
from flashevolve_lab.core.events import (
    CallFinished,
    CallStarted,
    Committed,
    Continued,
    ItemEnded,
    ItemMade,
    JobAbandoned,
    JobFailed,
    JobFinished,
    JobLost,
    JobStarted,
    Paused,
    RunStarted,
    RunStopped,
    SettingChanged,
    StalenessJudged,
    WorkersReviewed,
)
from flashevolve_lab.engine import Clock, Shell
from flashevolve_lab.policies import Policies, describe

ENDS = (JobFinished, JobFailed, JobAbandoned, JobLost)
SCHEDULES: Mapping[str, Any] = {
    "sequential": lab.Sequential(),
    "batched": lab.Batched(2, 2),
    "pipelined": lab.Pipelined(6),
    "deep": lab.Pipelined(24),
    "auto": lab.Pipelined("auto", least=2, most=24),
}
WORKERS: Sequence[Any] = (
    lab.Fixed(), lab.RateBalanced(every_s=1.0, most=6), lab.ServerAware(every_s=1.0, patience=1, pause=0, waste=0.05),
)  # fmt: skip
STALENESS: Sequence[Any] = (
    lab.Full(), lab.Guarded(0), lab.Guarded(1, beyond="update"), lab.Guarded(1, paper=True), lab.Reflective(),
)  # fmt: skip
NO_FAULTS = lab.Faults()
FAULTS = lab.Faults(rate_limited=0.05, server_error=0.05, hang=0.01, malformed=0.1, empty=0.05, truncated=0.05)


class Kept:
    """A log in memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def append(self, entries: Sequence[Entry]) -> None:
        self.entries += entries

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class World:
    """A small run: everything that decides what happens in it."""

    schedule: Any = field(default_factory=lambda: lab.Pipelined(4))
    staleness: Any = field(default_factory=lambda: lab.Guarded(2, beyond="update"))
    budget: Mapping[str, float] = field(default_factory=lambda: {"metric_calls": 250})
    faults: lab.Faults = NO_FAULTS
    seed: int = 0
    clock: Clock = field(default_factory=lab.Virtual)
    commands: Sequence[tuple[float, inputs.Input]] = ()
    speed: Any = field(default_factory=lambda: lab.FixedLatency(task_s=1.0, reflection_s=8.0, slots=8))
    llm: Any = None
    task: Any = None
    minibatch: int = 2
    log: Kept | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run(self, timeout_s: float = 60.0) -> Ran:
        """Run it to its end."""
        landscape = lab.IndependentRules(n_rules=10, p_improve=0.7, seed=self.seed)
        llm = self.llm or lab.Simulated(landscape, speed=self.speed, faults=self.faults, seed=self.seed)
        task = self.task or lab.simulated_task(landscape, n_train=24, n_val=8)
        worker, policies, log = lab.GEPA(minibatch=self.minibatch).bind(task, self.seed), Policies(), self.log or Kept()
        shell = Shell(
            worker=worker,
            task=task,
            models=dict.fromkeys(("task", "reflection", "patch"), (llm,)),
            limits=lab.Limits(concurrency=16, deadline_s=30.0, retries=2),
            log=log,
            policy=policies,
            clock=self.clock,
            record=True,
        )
        policies_given = {"schedule": policies.live(self.schedule), "staleness": policies.live(self.staleness)}
        for _, command in self.commands:
            if isinstance(command, inputs.SetKnobs):
                [policies.live(policy) for policy in (*SCHEDULES.values(), lab.Full(), lab.Guarded(0))]
        started = RunStarted(
            run="r",
            created="",
            seed=self.seed,
            clock=self.clock.name,
            algorithm={},
            stages=worker.graph.names,
            settings={**policies_given, "slots": {}, "concurrency": 16, **self.settings},
            budget=dict(self.budget),
            task={},
            llm={},
        )
        for at, command in self.commands:
            shell.loop.call_later(at, shell.post, command)
        shell.start([inputs.Start(started)])
        shell.done.result(timeout_s)
        assert shell.error is None, shell.error
        return Ran(log.entries, shell, Rules(worker, policies))


@dataclass
class Ran:
    """A run that has ended."""

    entries: list[Entry]
    shell: Shell
    rules: Rules

    @property
    def events(self) -> list[Event]:
        """Its log without times."""
        return [entry.event for entry in self.entries]

    def of(self, *kinds: type) -> list[Any]:
        """Its events of some kinds."""
        return [event for event in self.events if isinstance(event, kinds)]


def prefixes(entries: Sequence[Entry]) -> Iterator[tuple[RunState, Entry, bool]]:
    """The state after each entry, and whether a turn of the loop ended there (lab time went on, or the log ends)."""
    state = RunState()
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        apply(state, entry)
        yield state, entry, following is None or following.at > entry.at


def facts(state: RunState) -> dict[str, Any]:
    """Every field of a state as values that can be compared."""
    values = {f.name: getattr(state, f.name) for f in dataclasses.fields(state) if f.name != "pool"}
    return {**values, "pool": state.pool.order, "front": dict(state.pool.front())}


def told(entries: Sequence[Entry]) -> list[tuple[float, Event]]:
    """A log without what names this very run: its first event's time of creation and name."""
    [first, *rest] = entries
    assert isinstance(first.event, RunStarted)
    begun = dataclasses.replace(first.event, created="", run="", clock="")
    return [(first.at, begun), *((entry.at, entry.event) for entry in rest)]


def obeys(ran: Ran) -> None:
    """Everything that holds for any run at any moment."""
    check_every_prefix(ran.entries)
    check_ends(ran)
    assert isinstance(ran.events[-1], RunStopped)
    assert [entry.seq for entry in ran.entries] == list(range(1, len(ran.entries) + 1))
    assert all(before.at <= after.at for before, after in pairwise(ran.entries))


def check_every_prefix(entries: Sequence[Entry]) -> None:
    """The budget holds after every single entry, all other invariants after every turn."""
    for state, entry, turn_ended in prefixes(entries):
        for name, limit in state.budget.items():
            used = entry.at if name == "seconds" else getattr(state.spent, name) + getattr(state.reserved, name)
            assert used <= limit + 1e-6, f"{name}: {used} of {limit} after {entry}"
        if turn_ended:
            check(state)


def check_ends(ran: Ran) -> None:
    """Every started job and call ends exactly once; every item ends once, or waits in a queue of a stopped run."""
    started = Counter(event.job for event in ran.of(JobStarted))
    assert set(started.values()) <= {1}
    assert Counter(event.job for event in ran.of(*ENDS)) == started
    assert Counter(e.call for e in ran.of(CallStarted)) == Counter(e.call for e in ran.of(CallFinished))
    made, ended = [event.item for event in ran.of(ItemMade)], [event.item for event in ran.of(ItemEnded)]
    assert len(set(made)) == len(made) and len(set(ended)) == len(ended)
    assert set(made) - set(ended) == set(ran.shell.state.items)


# --- logs -----------------------------------------------------------------------------------------------------------------


def start(folder: Path, name: str, schedule: Any, faults: lab.Faults = NO_FAULTS, seed: int = 3) -> lab.Run:
    """A run by the public door, on virtual time, to its end."""
    landscape = lab.IndependentRules(n_rules=10, p_improve=0.7, seed=seed)
    run = lab.start(
        lab.simulated_task(landscape, n_train=24, n_val=8),
        lab.GEPA(minibatch=2),
        llm=lab.Simulated(landscape, faults=faults, seed=seed),
        schedule=schedule,
        staleness=lab.Guarded(1, beyond="update"),
        budget=lab.Budget(metric_calls=300),
        limits=lab.Limits(deadline_s=30.0),
        clock=lab.Virtual(),
        seed=seed,
        name=name,
        folder=folder,
    )
    run.wait(60)
    return run


@pytest.mark.parametrize("faults", [NO_FAULTS, FAULTS], ids=["no faults", "faults"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_same_seed_gives_the_same_log(tmp_path: Path, schedule: str, faults: lab.Faults) -> None:
    one, two = (start(tmp_path, name, SCHEDULES[schedule], faults) for name in ("one", "two"))
    assert told(one.entries) == told(two.entries)
    assert len(one.entries) > 200


def test_another_seed_gives_another_log(tmp_path: Path) -> None:
    one, two = (start(tmp_path, str(seed), lab.Pipelined(4), seed=seed) for seed in (1, 2))
    assert told(one.entries) != told(two.entries)


@pytest.mark.parametrize("faults", [NO_FAULTS, FAULTS], ids=["no faults", "faults"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_replay_is_live(tmp_path: Path, schedule: str, faults: lab.Faults) -> None:
    run = start(tmp_path, "live", SCHEDULES[schedule], faults)
    assert run._shell is not None
    live = run._shell.state
    replayed = lab.open(run.path)
    assert facts(replayed.state) == facts(live)
    check(replayed.state)
    check_every_prefix(replayed.entries)


@pytest.mark.parametrize("controlled", [False, True], ids=["fixed", "controlled"])
@pytest.mark.parametrize("clock", [lab.Virtual(), lab.Wall()], ids=["virtual", "wall"])
@pytest.mark.parametrize("faults", [NO_FAULTS, FAULTS], ids=["no faults", "faults"])
def test_recorded_inputs_decided_again_give_the_same_events(clock: Clock, faults: lab.Faults, controlled: bool) -> None:
    fast = lab.FixedLatency(task_s=0.002, reflection_s=0.01, slots=8)
    hangless = dataclasses.replace(faults, hang=0.0, retry_after_s=0.01)
    world = World(clock=clock, faults=hangless, budget={"metric_calls": 120})
    if controlled:  # the smallest time between reviews is that of the worker policy
        workers = describe(lab.ServerAware(every_s=0.02, patience=1, pause=0))
        world = dataclasses.replace(world, schedule=SCHEDULES["auto"], settings={"workers": workers})
    ran = (world if isinstance(clock, lab.Virtual) else dataclasses.replace(world, speed=fast)).run()
    assert ran.shell.recorded is not None
    state, again = RunState(), list[Event]()

    def enter(events: list[Event], at: float) -> None:
        for event in events:
            apply(state, Entry(state.seq + 1, at, event))
            again.append(event)

    for at, given in ran.shell.recorded:
        for one in given:
            enter(decide(state, one, at, ran.rules), at)
        if not isinstance(given[0], inputs.CallWanted):  # asked for in the middle of a turn, nothing is planned
            while events := plan(state, at, ran.rules):
                enter(events, at)
    assert again == ran.events
    assert controlled == bool(ran.of(WorkersReviewed))


# --- two clocks -----------------------------------------------------------------------------------------------------------


class Scripted:
    """A model that answers after a time fixed by what it is asked, and on request in a given order.

    Args:
        order: Which question is answered when. However slow the machine, an answer waits until all that follows from the one
            before has been done: so completions lie well apart on any clock.
    """

    def __init__(self, order: Sequence[str] = ()) -> None:
        self.order = list(order)
        self.answered: list[str] = []

    async def complete(self, request: lab.Request) -> lab.Reply:
        asked = "\n".join([request.role, *(message["content"] for message in request.messages)])
        draw = Random(f"{SALT} {asked}")
        await asyncio.sleep(UNIT_S * draw.randint(1, 12))
        while self.order and self.order[len(self.answered)] != asked:
            await asyncio.sleep(UNIT_S / 20)
        for _ in range(50 if self.order else 0):  # turns of the loop: more than anything needs that does not wait for a model
            await asyncio.sleep(0)
        self.answered.append(asked)
        if request.role == "reflection":
            return lab.Reply(f"```\nthe text of {content_hash({'': asked})}\n```", prompt_tokens=10, completion_tokens=10)
        return lab.Reply(str(draw.random()), prompt_tokens=10, completion_tokens=3)

    async def check(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"kind": "scripted", "simulated": True, "in_process": True}


@lab.quick
def as_number(example: Any, output: str) -> float:
    """The output is the score."""
    return float(output)


SALT, UNIT_S = 76, 0.02


def scripted(clock: Clock, model: Scripted) -> Ran:
    """Two proposals in flight in a scripted world."""
    examples = [{"input": f"question {i}"} for i in range(3)]
    task = lab.Task(examples, examples[:2], "answer", lab.Prompt(), as_number, perfect=2.0)
    world = World(
        schedule=lab.Pipelined(2), staleness=lab.Full(), budget={"proposals": 3}, clock=clock, llm=model, task=task, minibatch=1
    )
    return world.run()


def test_wall_time_and_virtual_time_write_the_same_log() -> None:
    script = Scripted()
    virtual = scripted(lab.Virtual(), script)
    ends = [entry.at for entry in virtual.entries if isinstance(entry.event, CallFinished)]
    assert min(after - before for before, after in pairwise(ends)) >= UNIT_S - 1e-6, "choose a SALT that keeps them apart"
    assert len(virtual.of(Committed)) >= 3 and virtual.of(StalenessJudged) and max(ends) < 1.0
    wall = scripted(lab.Wall(), Scripted(script.answered))
    assert [event for _, event in told(wall.entries)] == [event for _, event in told(virtual.entries)]


# --- any run --------------------------------------------------------------------------------------------------------------


def any_world(number: int) -> World:
    """A random small world, keyed by its number."""
    random = Random(f"world {number}")
    budgets: dict[str, float] = {
        "metric_calls": random.randint(40, 300),
        "llm_calls": random.randint(40, 300),
        "tokens": random.randint(10_000, 200_000),
        "proposals": random.randint(1, 25),
        "seconds": random.uniform(20.0, 200.0),
    }
    chosen = random.sample(sorted(budgets), random.randint(1, 3))
    if not {"metric_calls", "llm_calls", "tokens", "proposals"} & set(chosen):
        chosen.append("proposals")
    drawn = random.choice(
        [lab.Sequential(), lab.Batched(random.randint(1, 3), random.randint(1, 3)), lab.Pipelined(random.randint(1, 20))]
    )
    return World(
        schedule=drawn if number % 4 else SCHEDULES["auto"],
        staleness=random.choice(STALENESS),
        budget={name: budgets[name] for name in chosen},
        faults=random.choice([NO_FAULTS, FAULTS]),
        settings={
            "slots": random.choice([{}, {"validate": 1}, {"rollout": 1, "propose": 2}]),
            "workers": describe(WORKERS[number % len(WORKERS)]),
        },
        minibatch=random.randint(1, 4),
        seed=number,
    )


@pytest.mark.parametrize("number", range(30))
def test_the_budget_is_never_exceeded_every_job_ends_and_every_invariant_holds(number: int) -> None:
    ran = any_world(number).run()
    obeys(ran)
    assert ran.shell.state.stop is not None
    assert ran.shell.state.stop.kind in ("budget", "done"), ran.shell.state.stop


def steered_world(number: int) -> World:
    """A random small world in which a user pauses, steps, steers, judges and injects at random, and then stops it."""
    random = Random(f"commands {number}")
    policies = Policies()
    choices: list[Any] = [
        lambda: inputs.Pause(),
        lambda: inputs.Continue(),
        lambda: inputs.Step(random.randint(1, 3), random.choice(["", "validate", "rollout"])),
        lambda: inputs.SetKnobs({"schedule": policies.live(random.choice(list(SCHEDULES.values())))}),
        lambda: inputs.SetKnobs({"staleness": policies.live(random.choice([lab.Full(), lab.Guarded(0)]))}),
        lambda: inputs.SetKnobs({"workers": describe(random.choice(WORKERS))}),
        lambda: inputs.SetKnobs({"slots": random.choice([{}, {"validate": 1}, {"gate": 2}])}),
        lambda: inputs.SetKnobs({"budget": {"metric_calls": random.randint(300, 400)}}),
        lambda: inputs.SetKnobs({"concurrency": random.randint(1, 20)}),
        lambda: inputs.JudgeByHand(f"p{random.randint(0, 20)}", random.choice(["accept", "discard"]), "I say so"),
        lambda: inputs.Inject("a0", {"prompt": f"by hand {random.randint(0, 3)} RULE-{random.randint(0, 9)}."}),
    ]
    times = sorted(random.uniform(0.0, 60.0) for _ in range(25))
    commands = [(at, random.choice(choices)()) for at in times]
    commands += [(61.0, inputs.Continue()), (random.uniform(62.0, 90.0), inputs.Stop("user", "enough"))]
    return dataclasses.replace(any_world(number), budget={"metric_calls": 300}, commands=commands)


@pytest.mark.parametrize("number", range(8))
def test_they_hold_when_a_user_pauses_steers_and_stops(number: int) -> None:
    ran = steered_world(number).run()
    obeys(ran)
    starts_nothing_while_paused(ran)


def starts_nothing_while_paused(ran: Ran) -> None:
    """Between a pause and its end, only jobs stepped in this very pause start, and only their calls."""
    stepped = set[str]()
    for state, entry, _ in prefixes(ran.entries):
        if isinstance(entry.event, (Paused, Continued)):
            stepped.clear()
        if state.status != "paused" or isinstance(entry.event, (Paused, RunStopped)):
            continue
        if isinstance(entry.event, JobStarted):
            assert entry.event.stepped, f"{entry} while paused"
            stepped.add(entry.event.job)
        if isinstance(entry.event, CallStarted):
            assert entry.event.job in stepped, f"{entry} while paused"


def test_a_job_stepped_in_one_pause_sends_nothing_in_a_later_one() -> None:
    commands = [
        (30.0, inputs.Pause()),
        (30.0, inputs.SetKnobs({"concurrency": 1})),
        (100.0, inputs.Step(1, "gate")),  # the samples of its minibatch one by one
        (100.1, inputs.Continue()),
        (100.2, inputs.Pause()),
        (200.0, inputs.Continue()),
    ]
    ran = World(minibatch=4, schedule=lab.Pipelined(8), commands=commands).run()
    obeys(ran)
    starts_nothing_while_paused(ran)
    [stepped] = [event.job for event in ran.of(JobStarted) if event.stepped]
    calls = [e.at for e in ran.entries if isinstance(e.event, CallStarted) and e.event.job == stepped]
    assert len([at for at in calls if at <= 100.1]) == 1 and len(calls) == 4
    assert all(at >= 200.0 for at in calls[1:])


def test_pausing_starts_nothing_and_what_is_in_flight_finishes() -> None:
    world = World(schedule=lab.Pipelined(6), commands=[(30.0, inputs.Pause()), (500.0, inputs.Continue())])
    ran = world.run()
    obeys(ran)
    starts_nothing_while_paused(ran)
    paused = next(entry for entry in ran.entries if isinstance(entry.event, Paused))
    continued = next(entry for entry in ran.entries if isinstance(entry.event, Continued))
    assert (paused.at, continued.at) == (30.0, 500.0)
    between = [entry.event for entry in ran.entries if paused.seq < entry.seq < continued.seq]
    assert any(isinstance(event, CallFinished) and event.outcome == "ok" for event in between)
    assert not any(isinstance(event, (CallStarted, JobStarted, ItemMade)) for event in between)
    assert any(isinstance(event, JobStarted) for event in ran.events[continued.seq :])


def test_what_is_sent_is_in_the_log_first() -> None:
    log, sent = Kept(), 0

    class Watching(lab.Simulated):
        async def complete(self, request: lab.Request) -> lab.Reply:
            nonlocal sent
            sent += 1
            begun = sum(isinstance(entry.event, CallStarted) for entry in log.entries)
            assert begun >= sent, "a call that the log does not know"
            return await super().complete(request)

    ran = World(log=log, llm=Watching(lab.IndependentRules(n_rules=10, p_improve=0.7))).run()
    assert sent == len(ran.of(CallStarted)) > 100
    assert not ran.of(JobFailed)


def test_lowering_slots_and_depth_kills_nothing() -> None:
    knobs = {"slots": {"rollout": 1, "gate": 1, "validate": 1}, "concurrency": 1}
    ran = World(schedule=lab.Pipelined(12), commands=[(30.0, inputs.SetKnobs(knobs))]).run()
    obeys(ran)
    assert len(ran.of(SettingChanged)) == 2
    assert not [event for event in ran.of(CallFinished) if event.outcome == "cancelled"]
    assert not ran.of(JobAbandoned, JobFailed)


def test_a_stop_keeps_what_is_finished_and_abandons_the_rest_at_once() -> None:
    ran = World(schedule=lab.Pipelined(8), commands=[(40.0, inputs.Stop("user", "enough"))]).run()
    obeys(ran)
    assert ran.entries[-1].at == 40.0
    assert ran.of(JobAbandoned)
    assert not ran.shell.state.jobs and not ran.shell.state.calls
    assert ran.shell.state.reserved.as_dict() == {
        **dict.fromkeys(ran.shell.state.reserved.as_dict(), 0),
        "proposals": ungated(ran),
    }


def ungated(ran: Ran) -> int:
    """Proposals that wait for their first gate; each keeps its place in the budget, for a resume."""
    return sum(item.kind == "proposal" and not item.gated for item in ran.shell.state.items.values())


def test_nothing_unchanged_is_validated_twice_and_no_text_enters_the_pool_twice() -> None:
    for number in range(6):
        ran = dataclasses.replace(any_world(number), faults=NO_FAULTS).run()
        hashes = [ran.shell.state.artifacts[event.artifact].hash for event in ran.of(Committed)]
        assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("seconds", [33.25, 100 / 3, 33.1234566, 33.1234564999])
def test_the_deadline_is_kept_to_the_microsecond(seconds: float) -> None:
    ran = World(budget={"seconds": seconds}).run()
    obeys(ran)
    assert ran.entries[-1].at == pytest.approx(seconds, abs=1e-6)
    assert ran.shell.state.stop is not None and ran.shell.state.stop.reason.startswith("seconds")


def test_every_verdict_in_the_log_has_a_reason_and_a_gap() -> None:
    ran = World(schedule=lab.Pipelined(12), staleness=lab.Guarded(1, beyond="update")).run()
    verdicts = ran.of(StalenessJudged)
    assert {verdict.action for verdict in verdicts} >= {"accept", "update"}
    assert all(verdict.reason and verdict.gap > 0 and verdict.version - verdict.base >= verdict.gap for verdict in verdicts)


def test_a_forecast_of_few_proposals_warns_and_of_none_is_refused(tmp_path: Path) -> None:
    landscape = lab.IndependentRules(n_rules=4)
    task, llm = lab.simulated_task(landscape, n_train=4, n_val=4), lab.Simulated(landscape)
    with pytest.raises(lab.SetupError, match="allows no proposal"):
        lab.start(task, llm=llm, budget=lab.Budget(metric_calls=5), clock=lab.Virtual(), folder=tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lab.start(task, llm=llm, budget=lab.Budget(metric_calls=40), clock=lab.Virtual(), folder=tmp_path).wait()
    assert "few" in str(caught[0].message)
