"""The shell on virtual time: pause, step, stop, settings, budgets, failures; and that nothing can end a run but what should."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.algorithms.gepa import BoundGEPA
from flashevolve_lab.core import Spend
from flashevolve_lab.core import events as ev
from flashevolve_lab.core import inputs as on

LONG = 10_000.0
STARTS = (ev.JobStarted, ev.CallStarted)


def starts_between(w: Any, begin: float, end: float) -> list[Any]:
    return [entry for entry in w.entries if isinstance(entry.event, STARTS) and begin < entry.at < end]


def seconds_of(w: Any, command: Any) -> float:
    """Real seconds until the run has ended after this command (given as a function)."""
    began = time.monotonic()
    command()
    w.shell.done.result(10)
    return time.monotonic() - began


async def never(request: lab.Request, number: int) -> str:
    await asyncio.Event().wait()
    return ""


def slow_reflection(request: lab.Request, number: int) -> Any:
    return never(request, number) if request.role == "reflection" else None


# --- a plain run ------------------------------------------------------------------------------------------------------------


def test_a_run_goes_to_the_end_of_its_budget_and_improves(world: Any) -> None:
    w = world().run()
    assert (w.end.kind, w.end.reason) == ("budget", "metric_calls: 97 of 100 used; another proposal would not fit")
    assert w.shell.state.pool.best().mean == max(m.mean for m in w.shell.state.pool.order) > 0


@pytest.mark.parametrize("schedule", [lab.Sequential(), lab.Batched(2, 2), lab.Pipelined(5)], ids=lambda s: type(s).__name__)
def test_the_same_seed_gives_the_same_log(world: Any, scripted: Any, schedule: Any) -> None:
    assert world(schedule=schedule).run().entries == world(schedule=schedule).run().entries


def test_wall_time_and_virtual_time_write_the_same_log(world: Any, scripted: Any) -> None:
    """One proposal at a time, one call at a time: completions are well separated."""

    def story(clock: Any, seconds: float) -> list[Any]:
        llm = scripted(task_s=seconds, reflect_s=seconds)
        w = world(
            llm, clock=clock, schedule=lab.Sequential(), limits=lab.Limits(concurrency=1), budget={"metric_calls": 30}
        ).run()
        return [entry.event for entry in w.entries]

    assert story(lab.Wall(), 0.002) == story(lab.Virtual(), 1.0)


def test_two_runs_at_once_in_one_process_do_not_disturb_each_other(world: Any) -> None:
    alone = world().run().entries
    pair = [world(), world()]
    for w in pair:
        w.shell.start(w.first)
    for w in pair:
        w.shell.done.result(30)
        w.check()
        assert w.entries == alone


# --- pause ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [0.5, 3.5, 5.5, 8.2, 11.5, 17.5])
def test_a_pause_starts_no_job_and_no_call_and_what_is_in_flight_finishes(world: Any, moment: float) -> None:
    w = world().at(moment, on.Pause()).at(moment + 500, on.Continue()).run()
    assert starts_between(w, moment, moment + 500) == []
    ended = [entry.at for entry in w.entries if isinstance(entry.event, ev.CallFinished)]
    assert all(entry <= moment + 10 or entry >= moment + 500 for entry in ended)
    assert w.end.kind == "budget"
    assert w.shell.state.pool.version > 3


def test_calls_that_wait_for_a_slot_when_the_pause_comes_wait_for_its_end(world: Any) -> None:
    w = world(limits=lab.Limits(concurrency=1)).at(2.5, on.Pause()).at(900, on.Continue()).run()
    times = w.when(ev.CallStarted)
    assert times[:4] == [0.0, 1.0, 2.0, 900.0]
    assert not w.of(ev.SampleFailed), "waiting in a pause is not the program's time"


def test_calls_between_two_attempts_when_the_pause_comes_wait_for_its_end(world: Any, scripted: Any) -> None:
    def busy(request: lab.Request, number: int) -> None:
        if number < 4:
            raise lab.Transient("503")

    w = world(scripted(busy), limits=lab.Limits(backoff_s=4)).at(1.5, on.Pause()).at(800, on.Continue()).run()
    assert starts_between(w, 1.5, 800) == []
    assert sorted(e.attempt for e in w.of(ev.CallStarted)[:8]) == [0] * 4 + [1] * 4
    assert w.end.kind == "budget"
    assert not w.of(ev.SampleFailed)


def test_programs_of_several_calls_stop_between_two_of_them(world: Any, task_of: Any) -> None:
    async def program(components: Any, example: Any, llm: Any) -> str:
        for _ in range(3):
            last = await llm.complete(example["input"], system=components["prompt"])
        return str(last.text)

    w = world(task=task_of(program=program)).at(1.5, on.Pause()).at(700, on.Continue()).run()
    assert starts_between(w, 1.5, 700) == []
    assert not w.of(ev.SampleFailed)


def test_a_pause_does_not_bring_the_deadline_nearer_on_virtual_time(world: Any) -> None:
    w = world(budget={"seconds": 50}).at(10, on.Pause())
    paused = threading.Event()
    w.at(20, paused.set)
    w.shell.start(w.first)
    assert paused.wait(10)
    w.shell.send(on.Continue())
    w.shell.done.result(10)
    w.check()
    assert w.entries[-1].at == 50
    assert 20 <= w.when(ev.Continued)[0] < 50


def test_pausing_twice_is_pausing_once_and_continuing_a_running_run_is_nothing(world: Any) -> None:
    w = world().at(3.5, on.Continue(), on.Pause(), on.Pause()).at(50, on.Continue(), on.Continue()).run()
    assert len(w.of(ev.Paused)) == len(w.of(ev.Continued)) == 1


# --- step -------------------------------------------------------------------------------------------------------------------


def stepping(w: Any, jobs: int, stage: str = "") -> list[str]:
    """The stages of the jobs a step started, after everything is quiet."""
    before = asyncio.run_coroutine_threadsafe(w.shell.step(jobs, stage), w.shell.loop).result(10)
    return [e.event.stage for e in w.entries if e.seq > before and isinstance(e.event, ev.JobStarted)]


@pytest.fixture
def paused(world: Any) -> Any:
    w = world(schedule=lab.Pipelined(3), paused=True)
    w.shell.start(w.first)
    yield w
    w.shell.stop("enough")
    w.shell.done.result(10)
    w.check()


def test_a_step_runs_exactly_the_next_jobs_and_stays_paused(paused: Any) -> None:
    assert stepping(paused, 1) == ["validate"]  # the seed
    assert stepping(paused, 1) == ["rollout"]
    assert stepping(paused, 2) == ["propose", "rollout"]
    assert stepping(paused, 3) == ["gate", "propose", "rollout"]
    assert paused.shell.state.status == "paused"
    assert not paused.shell.state.jobs
    assert {e.stepped for e in paused.of(ev.JobStarted)} == {True}


def test_a_step_of_a_stage_runs_only_that_stage(paused: Any) -> None:
    stepping(paused, 1)
    assert stepping(paused, 3, "rollout") == ["rollout"] * 3
    assert stepping(paused, 2, "propose") == ["propose"] * 2
    assert stepping(paused, 1, "rollout") == []  # three in flight is the schedule's depth
    assert stepping(paused, 5, "propose") == ["propose"]
    assert len(paused.of(ev.ItemMade)) == 4


def test_what_a_step_could_not_start_is_not_started_later(paused: Any) -> None:
    assert stepping(paused, 5, "gate") == []
    assert paused.shell.state.step_jobs == 0
    assert stepping(paused, 1) == ["validate"]


def test_a_step_lets_its_own_jobs_call_and_no_others(world: Any) -> None:
    w = world(limits=lab.Limits(concurrency=1), schedule=lab.Pipelined(2))
    w.at(5.5, on.Pause())  # in the middle of rollouts: two jobs hold their calls back
    quiet = threading.Event()
    w.at(50, quiet.set)
    w.shell.start(w.first)
    assert quiet.wait(10)
    held = set(w.shell.state.jobs)
    before = len(w.of(ev.CallStarted))
    asyncio.run_coroutine_threadsafe(w.shell.step(1, ""), w.shell.loop).result(10)
    assert held and not {e.job for e in w.of(ev.CallStarted)[before:]} & held
    w.shell.send(on.Continue())
    w.shell.done.result(10)
    w.check()


def test_a_step_of_a_running_run_is_refused(world: Any) -> None:
    w = world(budget={"seconds": LONG, "metric_calls": 1e9}, clock=lab.Wall())
    w.shell.start(w.first)
    with pytest.raises(lab.SetupError, match="step: the run is running, not paused; run.pause"):
        asyncio.run_coroutine_threadsafe(w.shell.step(1, ""), w.shell.loop).result(10)
    w.shell.stop("enough")
    w.shell.done.result(10)


def test_a_step_that_waits_for_a_hung_call_ends_with_the_run(world: Any, scripted: Any) -> None:
    w = world(scripted(never), paused=True, clock=lab.Wall(), limits=lab.Limits(deadline_s=LONG))
    w.shell.start(w.first)
    step = asyncio.run_coroutine_threadsafe(w.shell.step(1, ""), w.shell.loop)
    while not w.shell.state.calls:
        pass
    w.shell.stop("enough")
    w.shell.done.result(10)
    assert step.done() or step.cancelled()
    w.check()


# --- stop -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.0, 4.5, 9.5, 13.0])
def test_a_stop_keeps_what_is_finished_and_lets_nothing_start(world: Any, moment: float) -> None:
    w = world().stop_at(moment).run()
    assert (w.end.kind, w.end.reason) == ("user", "enough")
    assert w.entries[-1].at == moment
    full = world().at(moment, lambda: None).run()
    assert [e for e in full.entries if e.at < moment] == [e for e in w.entries if e.at < moment]


def test_a_stop_before_the_seed_is_scored_leaves_it_to_a_resume(world: Any) -> None:
    w = world().stop_at(0.5).run()
    assert w.shell.state.pool.best() is None
    assert list(w.shell.state.queues["validate"]) == ["p0"]


def test_a_stop_during_a_pause_ends_the_run(world: Any) -> None:
    w = world().at(7.5, on.Pause()).stop_at(30).run()
    assert (w.end.kind, w.entries[-1].at) == ("user", 30)


@pytest.mark.parametrize("clock", [lab.Wall(), lab.Virtual()], ids=["wall", "virtual"])
def test_a_stop_ends_within_a_second_though_calls_hang_for_ever(world: Any, scripted: Any, clock: Any) -> None:
    w = world(scripted(never, task_s=0.0), clock=clock, limits=lab.Limits(deadline_s=1e12), sample_timeout_s=1e12)
    w.at(0.01, lambda: w.shell.stop("enough")) if isinstance(clock, lab.Virtual) else None
    w.shell.start(w.first)
    while len(w.llm.asked) < 4:
        pass
    assert seconds_of(w, lambda: w.shell.stop("enough")) < 1
    assert w.llm.now == 0
    w.check()


def test_a_stop_ends_soon_though_a_program_refuses_to_be_cancelled(world: Any, task_of: Any) -> None:
    began = threading.Event()

    async def stubborn(components: Any, example: Any, llm: Any) -> str:
        began.set()
        for _ in range(10_000):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.2)
            if w.shell.state.status == "stopped" and w.shell.loop.is_closed():
                break
        return "0"

    w = world(task=task_of(program=stubborn), clock=lab.Wall())
    w.shell.start(w.first)
    assert began.wait(5)
    assert seconds_of(w, lambda: w.shell.stop("enough")) < 2
    assert w.shell.state.status == "stopped"


def test_a_stop_frees_threads_that_wait_for_a_model(world: Any, scripted: Any, task_of: Any) -> None:
    left: list[str] = []

    def program(components: Any, example: Any, llm: Any) -> str:
        try:
            return str(llm.ask("x"))
        except BaseException as error:
            left.append(type(error).__name__)
            raise

    w = world(scripted(never, task_s=0.0), task=task_of(program=program), clock=lab.Wall())
    w.shell.start(w.first)
    while len(w.llm.asked) < 4:
        pass
    assert seconds_of(w, lambda: w.shell.stop("enough")) < 1
    assert w.llm.cancelled == 4
    for thread in threading.enumerate():
        if thread.name == "lab-user-code":
            thread.join(5)
    assert left == ["CancelledError"] * 4


def test_after_the_end_nothing_is_written_any_more(world: Any) -> None:
    late = on.SetKnobs({"max_failures": 3}), on.Pause(), ev.Warned("late", "late"), on.Stop("user", "again"), on.Continue()
    w = world().at(4.5, on.Stop("user", "enough"), *late).run()
    assert w.end.reason == "enough"


def test_stopping_twice_is_stopping_once(world: Any) -> None:
    w = world().stop_at(5).stop_at(5).run()
    assert len(w.of(ev.RunStopped)) == 1


@pytest.mark.parametrize("threads", [False, True], ids=["async", "threads"])
@pytest.mark.parametrize("clock", [lab.Wall(), lab.Virtual()], ids=["wall", "virtual"])
def test_calls_of_a_job_that_is_no_longer_wanted_are_cancelled_and_charged_and_the_run_goes_on(
    world: Any, scripted: Any, task_of: Any, clock: Any, threads: bool
) -> None:
    def hang_once(request: lab.Request, number: int) -> Any:
        mine = w.shell.state.items.get("p2")
        if mine is not None and mine.stage == "gate" and request.role == "task" and len(discarded) < 3:
            discarded.append(number)
            if len(discarded) == 3:
                w.shell.loop.call_later(0.01, w.shell.post, on.JudgeByHand("p2", "discard", "I do not like it"))
            return never(request, number)
        if len(discarded) == 3 and w.shell.state.items.get("p3"):
            cancelled.append(w.llm.cancelled)
        return None

    def program(components: Any, example: Any, llm: Any) -> str:
        return str(llm.ask(example["input"], system=components["prompt"]))

    discarded: list[int] = []
    cancelled: list[int] = []  # as seen by the first request after it
    task = task_of(program=program) if threads else task_of()
    llm = scripted(hang_once, task_s=0.001, reflect_s=0.001)
    w = world(llm, task=task, clock=clock, schedule=lab.Sequential(), budget={"metric_calls": 100})
    w.run()
    assert w.end.kind == "budget", w.end
    assert [e.reason for e in w.of(ev.JobAbandoned)] == ["discarded by hand"]
    assert cancelled[0] == w.llm.cancelled == 3 == len([e for e in w.of(ev.CallFinished) if e.outcome == "cancelled"])
    assert w.shell.state.pool.version > 3


# --- settings ---------------------------------------------------------------------------------------------------------------


def test_a_setting_changed_mid_run_is_recorded_with_old_new_and_why_and_governs(world: Any) -> None:
    w = world(schedule=lab.Sequential())
    w.at(30, on.SetKnobs({"schedule": w.live["policies"].live(lab.Pipelined(6))}, "user", "faster"))
    w.run()
    [changed] = w.of(ev.SettingChanged)
    assert (changed.knob, changed.old["name"], changed.new, changed.by, changed.why) == (
        "schedule", "Sequential", {"name": "Pipelined", "depth": 6}, "user", "faster",
    )  # fmt: skip
    most = Counter[bool]()
    for entry, state in folded(w):
        most[entry.at >= 30] = max(most[entry.at >= 30], state.in_flight)
    assert most == {False: 1, True: 6}


def folded(w: Any) -> Any:
    """Each entry with the state after it."""
    from flashevolve_lab.core import RunState, apply

    state = RunState()
    for entry in w.entries:
        apply(state, entry)
        yield entry, state


def test_a_setting_that_does_not_change_is_not_recorded(world: Any) -> None:
    w = world().at(5, on.SetKnobs({"concurrency": 64, "budget": {"metric_calls": 100}})).run()
    assert not w.of(ev.SettingChanged)


def test_lowering_concurrency_and_slots_kills_nothing_and_holds_from_then_on(world: Any) -> None:
    w = world(schedule=lab.Pipelined(6)).at(4.5, on.SetKnobs({"concurrency": 2, "slots": {"rollout": 1, "gate": 1}})).run()
    assert not [e for e in w.of(ev.CallFinished) if e.outcome != "ok"]
    late = [(entry, len(state.calls)) for entry, state in folded(w) if entry.at > 7 and isinstance(entry.event, ev.CallStarted)]
    assert max(calls for _, calls in late) == 2
    assert max(len(state.slots["rollout"]) for entry, state in folded(w) if entry.at > 12) == 1


def test_raising_concurrency_takes_effect_at_once(world: Any) -> None:
    w = world(limits=lab.Limits(concurrency=1)).at(1.5, on.SetKnobs({"concurrency": 10})).run()
    assert w.when(ev.CallStarted)[:4] == [0.0, 1.0, 1.5, 1.5]


CELL = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Picky:
    limit: float = float("inf")
    def judge(self, item):
        asked.append(item.gap)
        return lab.Verdict("discard" if item.gap > 1 else "accept", f"gap {item.gap} against {self.limit}")
@dataclass(frozen=True)
class Three:
    depth: int = 3
    def admits(self, pace):
        return lab.Starts(self.depth - pace.in_flight)
"""


def test_a_policy_from_a_notebook_cell_works_at_once_and_mid_run(world: Any) -> None:
    cell: dict[str, Any] = {"lab": lab, "asked": []}
    exec(CELL, cell)
    w = world(schedule=cell["Three"](), staleness=cell["Picky"]()).run()
    assert cell["asked"] and {e.policy for e in w.of(ev.StalenessJudged)} == {"Picky"}
    assert {e.action for e in w.of(ev.StalenessJudged)} == {"accept", "discard"}
    assert w.of(ev.StalenessJudged)[0].reason.endswith("against inf")

    w = world(schedule=lab.Pipelined(4), staleness=lab.Full())
    w.at(12, on.SetKnobs({"staleness": w.live["policies"].live(cell["Picky"]())})).run()
    policies = [e.policy for e in w.of(ev.StalenessJudged)]
    assert policies == ["Full"] * policies.count("Full") + ["Picky"] * policies.count("Picky")
    assert set(policies) == {"Full", "Picky"}


def test_a_policy_that_raises_does_not_end_the_run_and_its_verdict_says_so(world: Any) -> None:
    @dataclass(frozen=True)
    class Broken:
        def judge(self, item: Any) -> Any:
            raise ZeroDivisionError("oh")

    w = world(schedule=lab.Pipelined(6), staleness=Broken()).run()
    assert w.end.kind == "budget"
    assert {(e.action, "Broken failed: ZeroDivisionError: oh" in e.reason) for e in w.of(ev.StalenessJudged)} == {
        ("accept", True)
    }


# --- budgets ----------------------------------------------------------------------------------------------------------------

BUDGETS = {"metric_calls": 57, "llm_calls": 121, "tokens": 6_000, "dollars": 0.01, "seconds": 33.25, "proposals": 7}


@pytest.mark.parametrize("schedule", [lab.Sequential(), lab.Batched(2, 2), lab.Pipelined(8)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("name", BUDGETS)
def test_no_dimension_of_the_budget_is_exceeded_and_the_end_names_it(world: Any, name: str, schedule: Any) -> None:
    w = world(budget={name: BUDGETS[name]}, schedule=schedule, algorithm=lab.GEPA(proposer=lab.Reflect(max_tokens=100))).run()
    assert w.end.kind == "budget"
    assert name in w.end.reason
    assert w.shell.state.pool.version > 0
    if name != "seconds":
        assert 0 < getattr(w.shell.state.spent, name) <= BUDGETS[name]
        held = w.shell.state.reserved
        assert Spend(held.metric_calls, held.llm_calls, held.tokens, round(held.dollars, 12), held.proposals) == Spend()
    else:
        assert w.entries[-1].at == 33.25
    if name == "proposals":
        assert w.shell.state.spent.proposals == 7


@pytest.mark.parametrize(
    "faults", [lab.Faults(rate_limited=0.2), lab.Faults(server_error=0.2), lab.Faults(malformed=0.3, empty=0.2)]
)
@pytest.mark.parametrize("name", ["llm_calls", "tokens", "metric_calls"])
def test_failures_and_retries_are_charged_and_the_budget_holds(world: Any, name: str, faults: Any) -> None:
    land = lab.IndependentRules(n_rules=20)
    limit = {"llm_calls": 300, "tokens": 60_000, "metric_calls": 300}[name]
    w = world(lab.Simulated(land, faults=faults), task=lab.simulated_task(land, 20, 10), budget={name: limit},
              schedule=lab.Pipelined(8), algorithm=lab.GEPA(proposer=lab.Reflect(max_tokens=500)), max_failures=1000).run()  # fmt: skip
    assert w.end.kind == "budget", w.end
    assert getattr(w.shell.state.spent, name) <= limit
    assert w.shell.state.spent.llm_calls == len(w.of(ev.CallStarted))


def test_a_job_that_runs_out_of_budget_keeps_its_finished_siblings(world: Any) -> None:
    w = world(budget={"llm_calls": 30}, schedule=lab.Pipelined(4)).run()
    failed = [e for e in w.of(ev.JobFailed) if e.kind == "budget"]
    assert failed and "llm_calls: 30 of 30 used" in failed[0].message
    assert {e.outcome for e in w.of(ev.ItemEnded)} <= {"committed", "rejected", "unaffordable"}
    scored = len(w.of(ev.SampleScored))
    assert scored == w.shell.state.spent.metric_calls
    assert w.shell.state.spent.llm_calls == 30 == scored + sum(e.role == "reflection" for e in w.of(ev.CallStarted))


def test_a_budget_too_small_for_the_seed_ends_the_run_and_says_so(world: Any) -> None:
    w = world(budget={"llm_calls": 2}).run()
    assert "llm_calls" in w.end.reason and "seed" in w.end.reason
    assert w.shell.state.spent.llm_calls == 2


def test_a_larger_budget_lets_a_running_run_go_on(world: Any) -> None:
    w = world().at(20, on.SetKnobs({"budget": {"metric_calls": 200}}, "user", "one more round")).run()
    assert "of 200 used" in w.end.reason
    assert w.of(ev.SettingChanged)[0].old == {"metric_calls": 100}


def test_a_larger_budget_wakes_calls_and_items_that_did_not_fit(world: Any) -> None:
    """At 21 s everything is spent, and what is left waits for calls in flight."""
    short = world(budget={"llm_calls": 40}, schedule=lab.Pipelined(4)).run()
    last = short.when(ev.CallStarted)[-1]
    w = (
        world(budget={"llm_calls": 40}, schedule=lab.Pipelined(4))
        .at(last + 0.5, on.SetKnobs({"budget": {"llm_calls": 90}}))
        .run()
    )
    assert "of 90 used" in w.end.reason


def test_a_shorter_deadline_set_mid_run_is_kept(world: Any) -> None:
    w = world(budget={"seconds": 1000}).at(10, on.SetKnobs({"budget": {"seconds": 17.5}})).run()
    assert (w.end.kind, w.entries[-1].at) == ("budget", 17.5)


def test_a_longer_deadline_set_mid_run_is_kept(world: Any) -> None:
    w = world(budget={"seconds": 15}).at(10, on.SetKnobs({"budget": {"seconds": 40}})).run()
    assert (w.end.kind, w.entries[-1].at) == ("budget", 40)


def test_a_deadline_ends_a_run_whose_calls_hang(world: Any, scripted: Any) -> None:
    w = world(scripted(slow_reflection), budget={"seconds": 60}).run()
    assert (w.end.kind, w.entries[-1].at) == ("budget", 60)
    assert w.end.reason == "seconds: the 60 s of the budget are over"


# --- failures ---------------------------------------------------------------------------------------------------------------


def test_a_program_that_fails_scores_worst_with_the_error_as_feedback(world: Any, task_of: Any) -> None:
    def program(components: Any, example: Any, llm: Any) -> str:
        if example["input"] == "v1":
            raise KeyError("no such tool")
        return str(llm.ask(example["input"], system=components["prompt"]))

    w = world(task=task_of(program=program, worst=-2.0)).run()
    first = {e.example: e for e in w.of(ev.SampleScored) if e.split == "val" and e.artifact == "a0"}
    assert first[1].score == -2.0
    assert first[1].feedback == "The program failed: KeyError: 'no such tool'"
    assert w.end.kind == "budget"
    assert not w.of(ev.SampleFailed)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def _raise(error: BaseException) -> Any:
    raise error


BAD_METRICS = {
    "raises": lambda output: 1 / 0,
    "NaN": lambda output: float("nan"),
    "infinite": lambda output: (float("inf"), "x"),
    "a text": lambda output: "0.5",
    "None": lambda output: None,
    "three values": lambda output: (1, "a", "b"),
    "exits": lambda output: _raise(SystemExit(1)),
    "unspeakable": lambda output: _raise(Unspeakable()),
    "an odd text": lambda output: _raise(ValueError("\ud800\x00\u202e</script>")),
    "a huge number": lambda output: 10**400,
    "a timeout of its own": lambda output: _raise(TimeoutError("the judge is slow")),
    "a model error": lambda output: _raise(lab.Refused("the judge refuses")),
}


@pytest.mark.parametrize("quick", [False, True], ids=["thread", "quick"])
@pytest.mark.parametrize("bad", BAD_METRICS)
def test_a_bad_metric_leaves_its_sample_missing_and_counted(world: Any, task_of: Any, bad: str, quick: bool) -> None:
    def metric(example: Any, output: str) -> Any:
        return BAD_METRICS[bad](output) if example["input"] == "v3" else int(output) / 1000

    metric = lab.quick(metric) if quick else metric
    w = world(task=task_of(metric=metric), algorithm=lab.GEPA(min_coverage=0.7)).run()
    assert w.end.kind == "budget"
    assert {(e.split, e.example) for e in w.of(ev.SampleFailed)} == {("val", 3)}
    assert w.shell.state.spent.metric_calls == len(w.of(ev.SampleScored)) + len(w.of(ev.SampleFailed))
    committed = w.of(ev.Committed)
    assert len(committed) > 3 and all(set(e.scores) == {"0", "1", "2"} for e in committed)


def test_a_bad_output_does_not_take_its_siblings_along(world: Any, task_of: Any) -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("nothing to show")

    async def program(components: Any, example: Any, llm: Any) -> Any:
        number = (await llm.complete(example["input"], system=components["prompt"])).text
        return Silent() if example["input"] == "v0" else number

    w = world(
        task=task_of(program=program, metric=lambda example, output: 0.0 if isinstance(output, Silent) else int(output) / 1000)
    ).run()
    assert w.end.kind == "budget"
    assert len(w.of(ev.Committed)) > 3
    assert len({e.example for e in w.of(ev.SampleScored) if e.split == "val"}) >= 3


def test_one_failed_sample_of_a_hundred_does_not_lose_the_other_99(world: Any, task_of: Any) -> None:
    def metric(example: Any, output: str) -> float:
        return 1 / 0 if example["input"] == "v42" else int(output) / 1000

    task = task_of(val=[{"input": f"v{i}"} for i in range(100)], metric=lab.quick(metric))
    w = world(task=task, budget={"metric_calls": 350}).run()
    assert [len(e.scores) for e in w.of(ev.Committed)][:2] == [99, 99]
    of_seed = [e for e in w.of(ev.SampleScored) if e.artifact == "a0" and e.split == "val"]
    assert len(of_seed) == 99, "none was paid twice"
    assert len([e for e in w.of(ev.SampleFailed) if e.artifact == "a0"]) == 2, "the failed one got a second try"


def test_a_metric_that_fails_everywhere_ends_the_run_with_its_error(world: Any, task_of: Any) -> None:
    w = world(task=task_of(metric=lambda example, output: output.no_such_method())).run()
    assert w.end.kind == "failures"
    assert w.shell.state.last_failure.startswith("4 of 4 validation samples") or "no_such_method" in w.end.reason


@pytest.mark.parametrize("schedule", [lab.Sequential(), lab.Pipelined(8)], ids=lambda s: type(s).__name__)
def test_when_every_reflection_fails_the_run_ends_with_the_cause_and_keeps_its_work(
    world: Any, scripted: Any, schedule: Any
) -> None:
    def refuse(request: lab.Request, number: int) -> None:
        if request.role == "reflection":
            raise lab.Refused("403: the model is not yours")

    w = world(scripted(refuse), schedule=schedule, budget={"metric_calls": 1_000_000}).run()
    assert w.end.kind == "failures"
    assert "403: the model is not yours" in w.end.reason and "propose" in w.end.reason
    assert w.shell.state.pool.best().id == "a0"


def test_when_the_provider_is_down_the_run_ends_with_the_cause_before_it_has_spent_much(world: Any, scripted: Any) -> None:
    def down(request: lab.Request, number: int) -> None:
        if number >= 40:
            raise lab.Transient("502: bad gateway")

    w = world(scripted(down), budget={"metric_calls": 1_000_000}, limits=lab.Limits(retries=1)).run()
    assert w.end.kind == "failures"
    assert "502: bad gateway" in w.end.reason
    assert w.shell.state.pool.version > 0
    assert w.shell.state.spent.llm_calls < 300


def test_a_hung_call_meets_its_deadline_and_is_tried_again(world: Any, scripted: Any) -> None:
    def third(request: lab.Request, number: int) -> Any:
        return never(request, number) if number == 2 else None

    w = world(scripted(third), limits=lab.Limits(deadline_s=30)).run()
    assert w.end.kind == "budget"
    [late] = [e for e in w.of(ev.CallFinished) if e.outcome != "ok"]
    assert late.text == "no answer within the deadline of 30 s"
    assert [e.attempt for e in w.of(ev.CallStarted) if e.key == "a0:val:2#1" and e.job == "j0"] == [0, 1]
    assert not w.of(ev.SampleFailed)


class Uneven:
    """Raises on every other proposal."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.asked = 0

    async def propose(self, brief: Any, llm: Any) -> Any:
        self.asked += 1
        if self.asked % 2:
            raise self.error
        return lab.Draft(f"prompt number {self.asked}", "raw")

    def describe(self) -> dict[str, Any]:
        return {"name": "Uneven"}


ERRORS = [
    ValueError("v"),
    SystemExit(1),
    KeyboardInterrupt(),
    lab.BadReply("b", raw=object()),
    asyncio.CancelledError(),
    Unspeakable(),
]  # type: ignore[arg-type]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_raising_child_of_a_batch_does_not_lose_its_siblings(world: Any, error: BaseException) -> None:
    w = world(schedule=lab.Batched(2, 2), algorithm=lab.GEPA(proposer=Uneven(error))).run()
    assert w.end.kind == "budget", w.end
    failed, made = w.shell.state.counts["failed"] + w.shell.state.counts["refused"], len(w.of(ev.ArtifactMade)) - 1
    assert failed >= 4 and abs(failed - made) <= 2
    assert w.shell.state.pool.version == made


@pytest.mark.parametrize("draft", [None, "text", lab.Draft(None, ""), lab.Draft("", object()), lab.Draft(7, "")], ids=repr)  # type: ignore[arg-type]
def test_a_proposer_that_returns_nonsense_fails_its_jobs_and_then_the_run_and_not_the_engine(world: Any, draft: Any) -> None:
    class Odd(Uneven):
        async def propose(self, brief: Any, llm: Any) -> Any:
            return draft

    w = world(algorithm=lab.GEPA(proposer=Odd(ValueError()))).run()
    assert w.end.kind == "failures"
    assert "failures in a row" in w.end.reason


class Backend:
    """A model of the user's own that breaks its contract."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.calls = answer, 0

    async def complete(self, request: lab.Request) -> Any:
        self.calls += 1
        return self.answer() if callable(self.answer) else self.answer

    async def check(self) -> None: ...

    def describe(self) -> dict[str, Any]:
        return {"kind": "odd"}


@pytest.mark.parametrize(
    "answer",
    [
        lambda: _raise(ConnectionError("reset")),
        lambda: _raise(KeyError("choices")),
        "just a text",
        None,
        lambda: _raise(SystemExit(2)),
    ],
    ids=["ConnectionError", "KeyError", "text", "None", "SystemExit"],
)
def test_a_backend_that_breaks_its_contract_is_a_providers_failure_and_not_the_candidates(world: Any, answer: Any) -> None:
    w = world(Backend(answer), limits=lab.Limits(retries=1, backoff_s=0.001)).run()
    assert w.end.kind == "failures"
    assert not w.of(ev.SampleScored), "nothing was scored as if the program had failed"
    assert len(w.of(ev.SampleFailed)) == 8


def test_what_user_code_prints_and_raises_does_no_harm(world: Any, task_of: Any, capsys: Any) -> None:
    odd = "\ud800\u202e\x00\x1b[2J</script>"

    def program(components: Any, example: Any, llm: Any) -> str:
        print("seen", odd.encode("utf-8", "replace"))
        llm.ask(odd, system=odd)
        if example["input"] == "v0":
            raise RuntimeError(odd)
        return odd + str(llm.ask(example["input"], system=components["prompt"]))

    def metric(example: Any, output: str) -> tuple[float, str]:
        print("judged")
        return int(output.removeprefix(odd)) / 1000, odd

    w = world(task=task_of(program=program, metric=metric)).run()
    assert w.end.kind == "budget"
    assert w.shell.state.pool.version > 3
    assert any(e.feedback == odd for e in w.of(ev.SampleScored))
    assert "judged" in capsys.readouterr().out


# --- our own bugs, and the disk ---------------------------------------------------------------------------------------------


class BrokenRules(BoundGEPA):
    def route(self, state: Any, item: Any, stage: str, result: Any) -> Any:
        if stage == "gate":
            raise IndexError("a bug in the algorithm")
        return super().route(state, item, stage, result)


class BrokenGEPA(lab.GEPA):
    def bind(self, task: Any, seed: int) -> Any:
        return BrokenRules(self, task, seed)


def test_a_bug_in_the_rules_ends_the_run_and_the_log_says_so(world: Any) -> None:
    w = world(algorithm=BrokenGEPA(), schedule=lab.Pipelined(4)).run(checked=False)
    assert isinstance(w.shell.error, IndexError)
    assert w.end.kind == "error"
    assert "IndexError: a bug in the algorithm" in w.end.reason
    assert w.llm.now == 0, "no call outlives the engine"
    assert w.log.closed == 1
    w.shell.error = None
    w.check()  # even so: the log is whole, and everything that started has ended


class Full:
    """A disk that is full after so many writes."""

    def __init__(self, writes: int, memory: Any) -> None:
        self.left, self.memory = writes, memory
        self.writes, self.closed = memory.writes, 0

    def append(self, entries: Any) -> None:
        if not self.left:
            raise OSError(28, "No space left on device")
        self.left -= 1
        self.memory.append(entries)

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("writes", [0, 1, 2, 5, 30, 200])
@pytest.mark.parametrize("clock", [lab.Wall(), lab.Virtual()], ids=["wall", "virtual"])
def test_a_log_that_cannot_be_written_ends_the_run_and_its_calls(
    world: Any, scripted: Any, memory: Any, writes: int, clock: Any
) -> None:
    w = world(
        scripted(task_s=0.001, reflect_s=0.001),
        log=Full(writes, memory()),
        clock=clock,
        schedule=lab.Pipelined(6),
        budget={"metric_calls": 1000},
    )
    w.run(checked=False)
    assert isinstance(w.shell.error, OSError)
    assert w.llm.now == 0
    assert len(w.log.writes) == writes
    sent = {e.call for e in w.of(ev.CallStarted)}
    assert len(w.llm.asked) <= len(sent), "nothing is sent that is not in the log"
    assert not w.of(ev.RunStopped), "nothing is written after a gap"


def test_a_disk_full_at_the_very_last_entry_still_ends_the_run(world: Any) -> None:
    whole = world().run()
    w = world(log=Full(len(whole.log.writes) - 1, type(whole.log)())).run(checked=False)
    assert isinstance(w.shell.error, OSError)


class Later(Full):
    """A log that writes only when it is flushed (as on virtual time), and then finds the disk full."""

    def append(self, entries: Any) -> None: ...

    def flush(self) -> None:
        if self.left == 0:
            raise OSError(28, "No space left on device")
        self.left -= 1


@pytest.mark.parametrize("flushes", [0, 1])
def test_a_disk_that_is_found_full_later_ends_the_run_too(world: Any, memory: Any, flushes: int) -> None:
    w = world(log=Later(flushes, memory()), paused=True).run(checked=False)
    assert isinstance(w.shell.error, OSError)
