"""The handle of a run: looking at it, commanding it, waiting for it, from here and from elsewhere."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.algorithms.gepa import BoundGEPA
from flashevolve_lab.core import RunState, check
from flashevolve_lab.core import events as ev

LAND = lab.IndependentRules(n_rules=10, p_improve=0.8)
SLOW = lab.FixedLatency(task_s=3600.0, reflection_s=3600.0)
FAST = lab.FixedLatency(task_s=0.002, reflection_s=0.004, task_sigma=0.0, reflection_sigma=0.0)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., lab.Run]]:
    """Starts runs that end with the test."""
    begun: list[lab.Run] = []

    def start(**options: Any) -> lab.Run:
        given = {"llm": lab.Simulated(LAND, speed=FAST), "budget": lab.Budget(metric_calls=300), "folder": tmp_path}
        task = options.pop("task", None) or lab.simulated_task(LAND, 20, 10)
        run = lab.start(task, options.pop("algorithm", None), **{**given, "clock": lab.Virtual(), **options})
        begun.append(run)
        return run

    yield start
    for run in begun:
        if run.available:
            run.stop("the test ended")
            run.wait(10)


def hanging(begin: Any, **options: Any) -> lab.Run:
    """A run whose calls do not end."""
    return begin(clock=lab.Wall(), llm=lab.Simulated(LAND, speed=SLOW), limits=lab.Limits(deadline_s=1e6), **options)


# --- looking ----------------------------------------------------------------------------------------------------------------


def test_the_representation_tells_name_state_score_and_spending(begin: Any) -> None:
    run = begin(name="mine", paused=True)
    assert repr(run).startswith("<Run mine (simulated model): paused, 0.0 s, 0 proposals, 0 accepted, 0 of 300 metric_calls")
    run.resume().wait(20)
    text = repr(run)
    assert "stopped" in text and "best " in text and "(seed 0.000)" in text
    assert f"of 300 metric_calls. Stopped by budget: metric_calls: {run.status.spent['metric_calls']:g} of 300 used" in text


def test_status_best_and_entries_agree(begin: Any) -> None:
    run = begin()
    status = run.wait(20)
    committed = [entry.event for entry in run.entries if isinstance(entry.event, ev.Committed)]
    assert status.version == len(committed) - 1 == status.accepted
    assert run.best.score == status.best_score == max(member.mean for member in run.state.pool.order)
    assert run.best.text == run.state.artifacts[run.best.artifact].components["prompt"]
    assert status.simulated


def test_there_is_no_best_before_the_seed_is_scored(begin: Any) -> None:
    run = hanging(begin)
    assert run.best is None
    assert run.status.best_score is None
    assert "best" not in repr(run)


def test_looking_never_waits_for_the_run_and_never_disturbs_it(begin: Any) -> None:
    run = hanging(begin)
    while len(run.state.calls) < 10:
        pass
    began = time.monotonic()
    for _ in range(20):
        assert (run.status.state, run.growing, run.available) == ("running", True, True)
    assert time.monotonic() - began < 1
    assert len([entry for entry in run.entries if isinstance(entry.event, ev.CallStarted)]) == 10


def test_many_threads_may_look_at_one_handle(begin: Any) -> None:
    run = begin(clock=lab.Wall(), budget=lab.Budget(metric_calls=600), schedule=lab.Pipelined(6))
    problems: list[BaseException] = []

    def look() -> None:
        try:
            while run.available:
                repr(run), run.best, run.entries[-1:], run.after(0)
        except BaseException as error:
            problems.append(error)

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for thread in lookers:
        thread.start()
    run.wait(30)
    for thread in lookers:
        thread.join()
    assert not problems
    numbers = [entry.seq for entry in run.entries]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(
    "name", ["jobs", "calls", "artifacts", "items", "staleness", "budget", "settings", "scores", "failures"]
)
def test_frames_are_tables_of_the_log(begin: Any, name: str) -> None:
    pytest.importorskip("flashevolve_lab.views")
    run = begin(budget=lab.Budget(metric_calls=150))
    run.wait(20)
    frame = run.frame(name)
    if name == "jobs":
        assert len(frame) == len([entry for entry in run.entries if isinstance(entry.event, ev.JobStarted)])


# --- waiting ----------------------------------------------------------------------------------------------------------------


def test_wait_returns_the_status_after_its_timeout_while_the_run_goes_on(begin: Any) -> None:
    run = hanging(begin)
    assert run.wait(0.01).state == "running"
    assert run.wait(timeout=0).state == "running"


def test_a_run_can_be_awaited(begin: Any) -> None:
    async def cell() -> lab.Status:
        return await begin()

    assert asyncio.run(cell()).state == "stopped"


def test_giving_up_waiting_leaves_the_run_going(begin: Any) -> None:
    run = hanging(begin)

    async def cell() -> None:
        await asyncio.wait_for(run, 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(cell())
    assert (run.status.state, run.available) == ("running", True)
    assert run.stop("enough").wait(5).reason == "enough"


def test_an_interrupt_of_the_kernel_leaves_the_run_going() -> None:
    code = """
import signal, threading, tempfile
import flashevolve_lab as lab
land = lab.IndependentRules()
speed = lab.FixedLatency(task_s=0.01, reflection_s=0.01)
run = lab.start(lab.simulated_task(land, 20, 10), llm=lab.Simulated(land, speed=speed), budget=lab.Budget(seconds=60), folder=tempfile.mkdtemp())
def interrupt():
    while run.state.pool.version < 1: pass
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    run.wait()
except KeyboardInterrupt:
    before = run.status
    while run.state.spent.llm_calls < before.spent["llm_calls"] + 50: pass
    print("interrupted", before.state, run.status.state, run.stop("enough").wait(5).reason)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "interrupted running running enough", done.stderr


class Broken(BoundGEPA):
    def route(self, state: Any, item: Any, stage: str, result: Any) -> Any:
        if stage == "gate":
            raise IndexError("a bug in the algorithm")
        return super().route(state, item, stage, result)


@dataclass(frozen=True)
class BrokenGEPA(lab.GEPA):
    def bind(self, task: Any, seed: int) -> Any:
        return Broken(self, task, seed)


def test_a_run_that_fails_raises_from_wait_and_await_and_keeps_its_work(begin: Any) -> None:
    run = begin(algorithm=BrokenGEPA())
    with pytest.raises(lab.RunError, match=r"IndexError: a bug in the algorithm.*kept in .*\.sqlite") as raised:
        run.wait(20)
    assert isinstance(raised.value.__cause__, IndexError)

    async def cell() -> None:
        await run

    with pytest.raises(lab.RunError):
        asyncio.run(cell())
    assert run.status.kind == "error"
    assert run.best.score == 0.0


def test_when_every_reflection_fails_waiting_raises_with_the_cause(begin: Any) -> None:
    class Refusing(lab.Simulated):
        async def complete(self, request: lab.Request) -> lab.Reply:
            if request.role == "reflection":
                raise lab.Refused("403: this model is not yours")
            return await super().complete(request)

    run = begin(llm=Refusing(LAND), budget=lab.Budget(metric_calls=100_000))
    with pytest.raises(lab.RunError, match="20 failures in a row|32 failures in a row.*403: this model is not yours"):
        run.wait(20)
    assert run.best.artifact == "a0"


def test_a_run_whose_file_cannot_be_written_raises_from_wait(begin: Any, tmp_path: Path) -> None:
    run = hanging(begin, name="r")
    run._shell.loop.call_soon_threadsafe(run._shell.log._db.close)  # the disk goes away
    run.set(max_failures=7)
    with pytest.raises(lab.RunError, match=r"the log could not be written.*kept in .*r\.sqlite"):
        run.wait(10)
    assert run.status.state == "interrupted"


# --- commanding -------------------------------------------------------------------------------------------------------------


def test_commands_return_the_handle_and_are_seen_in_the_log(begin: Any) -> None:
    run = begin(paused=True, clock=lab.Wall())
    assert run.set(concurrency=3, why="the server is small") is run
    assert run.resume() is run
    assert run.pause() is run
    assert run.stop() is run
    run.wait(5)
    kinds = [type(entry.event).__name__ for entry in run.entries]
    order = ["Paused", "SettingChanged", "Continued", "Paused", "RunStopped"]
    assert [kind for kind in kinds if kind in order] == order
    [changed] = [entry.event for entry in run.entries if isinstance(entry.event, ev.SettingChanged)]
    assert (changed.knob, changed.old, changed.new, changed.why) == ("concurrency", 64, 3, "the server is small")


def test_a_reason_may_be_anything_that_has_a_text(begin: Any) -> None:
    run = begin(paused=True)
    run.set(concurrency=3, why=ValueError("slow"))
    assert run.stop(ValueError("enough")).wait(5).reason == "enough"


def test_stepping_through_a_run_job_by_job(begin: Any) -> None:
    run = begin(paused=True, schedule=lab.Sequential())
    stages = []
    for _ in range(5):
        written = run.step()
        [started] = [entry.event for entry in written if isinstance(entry.event, ev.JobStarted)]
        assert [entry.event.job for entry in written if isinstance(entry.event, ev.JobFinished)] == [started.job]
        stages.append(started.stage)
    assert stages[:4] == ["validate", "rollout", "propose", "gate"]
    assert run.status.state == "paused"
    assert run.step(stage="validate", n=2) == [] or stages[4] == "validate"


def test_a_step_in_which_nothing_can_start_returns_nothing(begin: Any) -> None:
    assert begin(paused=True).step(3, stage="gate") == []


def test_a_step_that_takes_too_long_raises_and_goes_on(begin: Any) -> None:
    run = hanging(begin, paused=True)
    with pytest.raises(TimeoutError, match="the step took longer than 0.05 s; it goes on"):
        run.step(timeout=0.05)
    assert len(run.state.jobs) == 1


def test_a_run_that_ends_while_a_step_waits_ends_the_step(begin: Any) -> None:
    run = hanging(begin, paused=True)
    threading.Timer(0.1, run.stop).start()
    written = run.step(timeout=10)
    assert isinstance(written[-1].event, ev.RunStopped)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 0}, r"step\(n\): expected an integer of at least 1; got 0"),
        ({"n": "2"}, "expected an integer of at least 1; got '2'"),
        ({"n": True}, "expected an integer of at least 1; got True"),
        ({"stage": "gates"}, "there is no stage 'gates'; the stages are rollout, propose, .*gate, validate"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(begin: Any, arguments: Any, words: str) -> None:
    with pytest.raises(lab.SetupError, match=words):
        begin(paused=True).step(**arguments)


def test_a_step_of_a_running_run_says_to_pause_first(begin: Any) -> None:
    with pytest.raises(lab.SetupError, match=r"the run is running, not paused; run\.pause\(\) first"):
        hanging(begin).step()


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"schedule": None}, "schedule: expected .* got None"),
        ({"schedule": "Pipelined"}, r"schedule: expected Sequential\(\), .* or one of your own; got 'Pipelined'"),
        ({"schedule": lab.Pipelined}, "schedule: expected .* got <class"),
        ({"staleness": 8}, r"staleness: expected Full\(\), Guarded\(max_gap\) or an object with judge\(item\); got 8"),
        ({"staleness": lab.Guarded}, "staleness: expected .* got <class"),
        ({"slots": 4}, "slots: expected a mapping of stage → worker slots, e.g. .*; got 4"),
        ({"slots": {"gates": 4}}, "slots: there is no stage 'gates'; the stages are"),
        ({"slots": {"gate": 0}}, r"slots\['gate'\]: expected an integer of at least 1; got 0"),
        ({"concurrency": 0}, "concurrency: expected an integer of at least 1; got 0"),
        ({"concurrency": True}, "concurrency: expected an integer of at least 1; got True"),
        ({"max_failures": 1.5}, "max_failures: expected an integer of at least 1; got 1.5"),
        ({"budget": 100}, r"budget: expected lab.Budget\(metric_calls=…, …\); got 100"),
        ({"budget": lab.Budget(dollars=1)}, "dollars need a price"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_and_changes_nothing(begin: Any, knobs: Any, words: str) -> None:
    run = begin(paused=True)
    before = run.state.seq
    with pytest.raises(lab.SetupError, match=words):
        run.set(**knobs)
    with pytest.raises(lab.SetupError):
        run.set(
            concurrency=2, **{k: v for k, v in knobs.items() if k != "concurrency"}
        ) if "concurrency" not in knobs else run.set(**knobs)
    run.stop().wait(5)
    assert not [entry for entry in run.entries if entry.seq > before and isinstance(entry.event, ev.SettingChanged)]


COMMANDS: dict[str, Callable[[lab.Run], Any]] = {
    "pause": lambda run: run.pause(),
    "resume": lambda run: run.resume(),
    "set": lambda run: run.set(concurrency=2),
    "stop": lambda run: run.stop(),
    "step": lambda run: run.step(),
}


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "stop"])  # a stop then has nothing left to do
def test_commands_to_an_ended_run_say_that_it_has_ended_and_why(begin: Any, command: str) -> None:
    run = begin(name="r", paused=True)
    run.stop("enough").wait(5)
    with pytest.raises(lab.SetupError, match=r"r has ended \(enough\)"):
        COMMANDS[command](run)


def test_a_knob_that_does_not_exist_is_an_error_of_the_call(begin: Any) -> None:
    with pytest.raises(TypeError, match="speed"):
        begin(paused=True).set(speed=3)


def test_commands_to_an_ended_run_name_the_resume_that_goes_on_with_it(begin: Any) -> None:
    run = begin(name="r")
    run.wait(20)
    with pytest.raises(
        lab.SetupError, match=r"r has ended .*lab\.resume\('.*r\.sqlite', task=…, llm=…, budget=<a larger one>\)"
    ):
        run.pause()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_to_an_opened_run_say_that_it_can_only_be_looked_at(begin: Any, command: str) -> None:
    run = begin(name="r", paused=True)
    run.stop("enough").wait(5)
    with pytest.raises(lab.SetupError, match="r is not executed by this process, so it can only be looked at: lab.resume"):
        COMMANDS[command](lab.open(run.path))


def test_a_run_of_another_process_is_to_be_steered_there(elsewhere: Path) -> None:
    with pytest.raises(lab.SetupError, match="can only be looked at: steer it where it runs"):
        lab.open(elsewhere).pause()


def test_opening_a_run_that_this_process_executes_gives_the_handle_that_commands_it(begin: Any, tmp_path: Path) -> None:
    run = begin(name="r", paused=True)
    assert lab.open(run.path) is run
    assert lab.open(os.path.relpath(run.path)) is run


def test_a_run_whose_handle_was_lost_is_found_again_by_its_path(tmp_path: Path) -> None:
    def cell() -> Path:
        llm = lab.Simulated(LAND, speed=SLOW)
        return lab.start(lab.simulated_task(LAND), llm=llm, budget=lab.Budget(metric_calls=5_000), folder=tmp_path).path

    path = cell()
    gc.collect()
    found = lab.open(path)
    assert found.available
    assert found.set(concurrency=3).stop("found").wait(5).reason == "found"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A run that another process executes, for a second."""
    code = f"""
import sys, time, flashevolve_lab as lab
land = lab.IndependentRules()
run = lab.start(lab.simulated_task(land), llm=lab.Simulated(land, speed=lab.FixedLatency(task_s=3600)), budget=lab.Budget(metric_calls=5000),
                folder={str(tmp_path)!r}, name="there")
print("begun", flush=True)
sys.stdin.readline()
time.sleep(0.5)
run.stop("enough").wait(5)
"""
    there = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert there.stdin is not None and there.stdout is not None
    try:
        assert there.stdout.readline() == "begun\n"
        there.stdin.write("go\n")
        there.stdin.flush()
        yield tmp_path / "there.sqlite"
    finally:
        there.kill()
        there.wait()
        there.stdin.close()
        there.stdout.close()


def test_a_run_of_another_process_is_waited_for_until_its_end_or_the_timeout(elsewhere: Path) -> None:
    run = lab.open(elsewhere)
    began = time.monotonic()
    assert run.wait(0.1).state == "running"
    assert time.monotonic() - began < 0.4
    assert (run.wait(10).state, run.status.reason) == ("stopped", "enough")


def test_a_run_of_another_process_can_be_awaited(elsewhere: Path) -> None:
    async def cell() -> lab.Status:
        return await asyncio.wait_for(lab.open(elsewhere), 10)

    assert asyncio.run(cell()).reason == "enough"


def test_a_state_that_was_handed_out_stays_as_it_was(begin: Any) -> None:
    run = begin(paused=True)
    before = run.state
    artifacts, seq = dict(before.artifacts), before.seq
    run.resume().wait(20)
    after = run.state
    assert (before.seq, before.artifacts, before.pool.version, before.status) == (seq, artifacts, -1, "paused")
    assert after.seq > seq and after.pool.version >= 0
    folded = RunState().apply_all(run.entries)
    check(after)
    assert {f.name: getattr(after, f.name) for f in fields(after) if f.name != "pool"} == {
        f.name: getattr(folded, f.name) for f in fields(folded) if f.name != "pool"
    }
    assert vars(after.pool) | {"_front": 0} == vars(folded.pool) | {"_front": 0}
    assert run.state is after, "what has not changed is not copied"


def test_a_state_may_be_walked_through_while_another_thread_reads_on(begin: Any) -> None:
    run = begin(clock=lab.Wall(), budget=lab.Budget(metric_calls=600), schedule=lab.Pipelined(6))
    over, problems = threading.Event(), []

    def walk() -> None:
        while not over.is_set():
            try:
                state = run.state
                sum(len(member.scores) for member in state.pool.members.values()), [list(s) for s in state.samples.values()]
                [item.data.copy() for item in state.items.values()]
            except RuntimeError as error:  # changed size during iteration
                problems.append(error)
                return

    walker = threading.Thread(target=walk)
    walker.start()
    while run.available:
        assert run.status
    over.set()
    walker.join()
    assert not problems


def test_a_table_asked_for_again_takes_in_only_what_is_new(begin: Any) -> None:
    run = begin(paused=True)
    assert len(run.frame("jobs")) == 0
    tables = run._tables
    run.resume().wait(20)
    assert len(run.frame("jobs")) == len([entry for entry in run.entries if isinstance(entry.event, ev.JobStarted)])
    assert run._tables is tables


def test_listing_runs_leaves_no_file_open(begin: Any, tmp_path: Path) -> None:
    begin(name="done").wait(20)
    lab.runs(tmp_path)
    gc.collect()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    gc.disable()
    try:
        for _ in range(5):
            lab.runs(tmp_path)
        assert not before or len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


# --- from elsewhere ---------------------------------------------------------------------------------------------------------


def test_a_run_can_be_watched_from_another_process_while_it_runs(begin: Any) -> None:
    run = hanging(begin, name="r")
    code = f"""
import json, flashevolve_lab as lab
run = lab.open({str(run.path)!r})
print(json.dumps([run.status.state, run.growing, run.available, run.wait(0).state, len(run.entries)]))
"""

    def elsewhere() -> list[Any]:
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    assert elsewhere() == ["running", True, False, "running", len(run.entries)]
    run.stop("enough").wait(5)
    assert elsewhere() == ["stopped", False, False, "stopped", len(run.entries)]


def test_an_opened_run_shows_what_the_live_handle_shows(begin: Any) -> None:
    run = begin()
    run.wait(20)
    opened = lab.open(run.path)
    assert opened.entries == run.entries
    assert (opened.status, opened.best, repr(opened)) == (run.status, run.best, repr(run))


def test_a_run_whose_process_was_killed_is_interrupted(tmp_path: Path) -> None:
    code = f"""
import os, flashevolve_lab as lab
land = lab.IndependentRules()
speed = lab.FixedLatency(task_s=3600)
lab.start(lab.simulated_task(land), llm=lab.Simulated(land, speed=speed), budget=lab.Budget(seconds=99), folder={str(tmp_path)!r}, name="r")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], timeout=20)
    run = lab.open(tmp_path / "r.sqlite")
    assert (run.status.state, run.growing) == ("interrupted", False)
    assert run.wait(5).state == "interrupted"


def test_opening_what_is_no_run_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(lab.LogError, match=r"there is no run file .*: lab\.runs\(folder\) lists those that exist"):
        lab.open(tmp_path / "none.sqlite")
    (tmp_path / "notes.sqlite").write_text("some text that is long enough to be no database" * 10)
    with pytest.raises(lab.LogError, match="not a run file of flashevolve_lab, or is damaged"):
        lab.open(tmp_path / "notes.sqlite")


def test_the_list_of_runs_shows_all_and_says_which_are_damaged(begin: Any, tmp_path: Path) -> None:
    begin(name="done").wait(20)
    hanging(begin, name="going")
    (tmp_path / "foreign.sqlite").write_bytes(b"not a database at all" * 100)
    whole = (tmp_path / "done.sqlite").read_bytes()
    (tmp_path / "cut.sqlite").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.sqlite").write_bytes(b"")
    (tmp_path / "torn.sqlite").write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    (tmp_path / "notes.txt").write_text("no run")
    runs = lab.runs(tmp_path).set_index("run")
    assert set(runs.index) == {"done", "going", "foreign", "cut", "empty", "torn"}
    assert (runs.state["done"], runs.state["going"]) == ("stopped", "running")
    assert set(runs.state[["foreign", "cut", "empty", "torn"]]) == {"unreadable"}
    assert runs.reason["foreign"].startswith(str(tmp_path / "foreign.sqlite"))
    assert runs.best_score["done"] > 0


def test_the_list_of_a_folder_without_runs_is_empty(tmp_path: Path) -> None:
    assert lab.runs(tmp_path / "nowhere").empty
