"""A run goes on from its file after a crash, a kill or a stop: from any cut, losing and repaying nothing that had arrived."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import Entry, RunState, apply, check
from flashevolve_lab.core import events as ev
from flashevolve_lab.runs.resuming import _claimed
from flashevolve_lab.store import Reader, Writer
from flashevolve_lab.views import RunFacts

LANDSCAPE = lab.IndependentRules(n_rules=10, p_improve=0.6)
TASK = lab.simulated_task(LANDSCAPE, n_train=20, n_val=10)


def finished(folder: Path, **settings: object) -> list[Entry]:
    """The log of a run on virtual time."""
    wanted = {"schedule": lab.Pipelined(6), "budget": lab.Budget(metric_calls=250)} | settings
    run = lab.start(TASK, llm=lab.Simulated(LANDSCAPE), clock=lab.Virtual(), name="whole", folder=folder, **wanted)
    run.wait(60)
    return run.entries


def cut_file(entries: list[Entry], path: Path) -> Path:
    """A run's file as a kill at this point would leave it: these entries, and a writer whose number another process has by now."""
    writer = Writer(path)
    writer.append(entries)
    writer.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'writer'", (f"{os.getpid()}@{os.uname().nodename}",))
    db.close()
    return path


def resumed(path: Path, **settings: object) -> lab.Run:
    return lab.resume(path, task=TASK, llm=lab.Simulated(LANDSCAPE), clock=lab.Virtual(), **settings)


def turns(entries: list[Entry]) -> list[int]:
    """Where a transaction may have ended: the last entry of each moment."""
    return [i + 1 for i in range(len(entries) - 1) if entries[i].at != entries[i + 1].at]


def test_a_run_resumes_from_any_cut_and_ends_within_its_budget(tmp_path: Path) -> None:
    entries = finished(tmp_path)
    for number, cut in enumerate(random.Random(0).sample(turns(entries), 12)):
        path = cut_file(entries[:cut], tmp_path / f"cut{number}.sqlite")
        run = resumed(path)
        status = run.wait(60)
        assert run.entries[:cut] == entries[:cut]
        assert status.kind == "budget" and status.spent["metric_calls"] <= 250
        check(run.state)
        assert not run.state.jobs and not run.state.calls


def test_what_was_in_flight_is_lost_charged_as_reserved_and_taken_up_again_in_front(tmp_path: Path) -> None:
    entries = finished(tmp_path)
    cut = next(c for c in turns(entries) if len((s := RunState().apply_all(entries[:c])).calls) >= 3 and s.pool.version >= 1)
    before = RunState().apply_all(entries[:cut])
    run = resumed(cut_file(entries[:cut], tmp_path / "cut.sqlite"))
    run.wait(60)
    again = [e.event for e in run.entries[cut:]]
    lost = [e for e in again if isinstance(e, ev.JobLost)]
    charged = [e for e in again if isinstance(e, ev.CallFinished) and "lost with its process" in e.text]
    assert {e.job for e in lost} == set(before.jobs)
    assert {e.call: e.spent for e in charged} == {call.id: call.reserved for call in before.calls.values()}
    restarted = [e.item for e in again if isinstance(e, ev.JobStarted)]
    assert set(restarted[: len(before.jobs)]) >= {job.item for job in before.jobs.values()}


def test_a_reply_that_had_arrived_is_not_paid_again(tmp_path: Path) -> None:
    entries = finished(tmp_path)
    calls = {e.event.call for e in entries if isinstance(e.event, ev.CallStarted) and e.event.role == "reflection"}
    cut = next(i for i, e in enumerate(entries, 1) if isinstance(e.event, ev.CallFinished) and e.event.call in calls)
    state = RunState().apply_all(entries[:cut])
    item, answers = next((k[0], v) for k, v in state.answers.items() if k[1] == "propose")
    run = resumed(cut_file(entries[:cut], tmp_path / "cut.sqlite"))
    run.wait(60)
    jobs = {e.event.job for e in run.entries[cut:] if isinstance(e.event, ev.JobStarted) and e.event.item == item}
    repaid = [
        e for e in run.entries[cut:] if isinstance(e.event, ev.CallStarted) and e.event.job in jobs and e.event.key in answers
    ]
    assert not [e for e in repaid if e.event.role == "reflection"]
    assert any(isinstance(e.event, ev.ArtifactMade) and e.event.item == item for e in run.entries[cut:])


def test_the_sampler_goes_on_where_it_stood(tmp_path: Path) -> None:
    entries = finished(tmp_path, schedule=lab.Sequential())
    cut = next(c for c in turns(entries) if RunState().apply_all(entries[:c]).made["p"] == 4)
    run = resumed(cut_file(entries[:cut], tmp_path / "cut.sqlite"))
    run.wait(60)

    def minibatches(log: list[Entry]) -> list[list[int]]:
        made = [e.event for e in log if isinstance(e.event, ev.ItemMade) and e.event.kind == "proposal"]
        return [e.data["minibatch"] for e in made]

    assert minibatches(run.entries)[:7] == minibatches(entries)[:7]


def test_a_stopped_run_goes_on_and_a_spent_one_with_a_larger_budget(tmp_path: Path) -> None:
    before = finished(tmp_path)
    run = resumed(tmp_path / "whole.sqlite", budget=lab.Budget(metric_calls=400))
    status = run.wait(60)
    assert 250 < status.spent["metric_calls"] <= 400
    assert run.entries[: len(before)] == before
    change = next(e.event for e in run.entries if isinstance(e.event, ev.SettingChanged) and e.event.knob == "budget")
    assert (change.old, change.new) == ({"metric_calls": 250}, {"metric_calls": 400})


@pytest.mark.parametrize(
    ("part", "task"),
    [
        ("train", replace(TASK, train=TASK.train[1:])),
        ("val", replace(TASK, val=TASK.val[1:])),
        ("seed", replace(TASK, seed="another")),
    ],
)
def test_another_task_is_refused_and_the_file_left_as_it_is(part: str, task: lab.Task, tmp_path: Path) -> None:
    finished(tmp_path)
    path = tmp_path / "whole.sqlite"
    before = path.read_bytes()
    with pytest.raises(lab.SetupError, match=f"task: its {part} differ"):
        lab.resume(path, task=task, llm=lab.Simulated(LANDSCAPE), clock=lab.Virtual())
    assert path.read_bytes() == before


def test_another_algorithm_clock_or_a_lost_policy_is_refused(tmp_path: Path) -> None:
    finished(tmp_path)
    path = tmp_path / "whole.sqlite"
    with pytest.raises(lab.SetupError, match="algorithm: the run was started with"):
        resumed(path, algorithm=lab.GEPA(minibatch=4))
    with pytest.raises(lab.SetupError, match="clock: the run is on virtual time"):
        lab.resume(path, task=TASK, llm=lab.Simulated(LANDSCAPE))
    with pytest.raises(lab.LogError, match="no run file"):
        resumed(tmp_path / "none.sqlite")


class Mine:
    """A policy as a notebook cell would define it."""

    def judge(self, item: lab.StaleItem) -> lab.Verdict:
        return lab.Verdict("accept", "mine")


def test_a_policy_from_a_cell_must_be_given_again(tmp_path: Path) -> None:
    entries = finished(tmp_path, staleness=Mine())
    path = cut_file(entries[: turns(entries)[-20]], tmp_path / "cut.sqlite")
    with pytest.raises(lab.SetupError, match="pass the object itself again"):
        resumed(path)
    assert resumed(path, staleness=Mine()).wait(60).kind == "budget"


def test_a_run_that_is_being_executed_cannot_be_resumed(tmp_path: Path) -> None:
    run = lab.start(
        TASK,
        llm=lab.Simulated(LANDSCAPE),
        budget=lab.Budget(metric_calls=500),
        clock=lab.Virtual(),
        name="busy",
        folder=tmp_path,
        paused=True,
    )
    with pytest.raises(lab.LogError, match="is being written by process"):
        resumed(tmp_path / "busy.sqlite")
    run.stop()
    run.wait(10)


def limited(run: lab.Run) -> tuple[object, float]:
    """The limits that a run's gateway has, and its seconds for a sample."""
    shell = run._shell
    assert shell is not None
    return shell.gateway.limits, shell.sample_timeout_s


def changes(run: lab.Run, knob: str) -> list[tuple[object, object]]:
    events = (entry.event for entry in run.entries)
    return [(e.old, e.new) for e in events if isinstance(e, ev.SettingChanged) and e.knob == knob]


LIMITS = lab.Limits(concurrency=9, deadline_s=44.0, retries=1, backoff_s=3.0, hedge=0.9)


def test_a_resume_keeps_the_limits_in_force_at_the_end_and_records_others(tmp_path: Path) -> None:
    llm = lab.Simulated(LANDSCAPE)
    again = {"budget": lab.Budget(metric_calls=250), "clock": lab.Virtual(), "name": "r", "folder": tmp_path}
    run = lab.start(TASK, llm=llm, limits=LIMITS, sample_timeout_s=77.0, paused=True, **again)  # type: ignore[arg-type]
    run.set(concurrency=5).stop().wait(10)
    path = tmp_path / "r.sqlite"

    kept = resumed(path, paused=True)
    assert limited(kept) == (replace(LIMITS, concurrency=5), 77.0)
    kept.stop().wait(10)
    assert changes(kept, "concurrency") == [(9, 5)] and changes(kept, "limits") == []

    other = resumed(path, limits=replace(LIMITS, deadline_s=10.0), sample_timeout_s=5.0, concurrency=3, paused=True)
    assert limited(other) == (replace(LIMITS, deadline_s=10.0, concurrency=3), 5.0)
    other.stop().wait(10)
    assert changes(other, "concurrency")[-1] == (5, 3)
    [(old, new)] = changes(other, "limits")
    assert (old["deadline_s"], new["deadline_s"], new["sample_timeout_s"]) == (44.0, 10.0, 5.0)  # type: ignore[index]


def test_a_log_that_says_nothing_of_limits_resumes_with_the_defaults_and_its_concurrency(tmp_path: Path) -> None:
    entries = finished(tmp_path)
    first = entries[0].event
    assert isinstance(first, ev.RunStarted)
    settings = {k: v for k, v in first.settings.items() if k != "limits"} | {"concurrency": 7}
    old = [replace(entries[0], event=replace(first, settings=settings)), *entries[1 : turns(entries)[40]]]
    run = resumed(cut_file(old, tmp_path / "old.sqlite"), paused=True)
    assert limited(run) == (lab.Limits(concurrency=7), 600.0)
    run.stop().wait(10)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_run_that_was_paused_when_it_ended_resumes_paused_unless_told_otherwise(how: str, tmp_path: Path) -> None:
    whole = finished(tmp_path)
    cut = turns(whole)[40]
    end: list[Entry] = [Entry(cut + 1, whole[cut - 1].at, ev.Paused())]
    if how == "stopped":
        state = RunState().apply_all([*whole[:cut], *end])
        calls = [ev.CallFinished(c.id, "cancelled", c.reserved) for c in state.calls.values()]
        jobs = [
            e for j in state.jobs.values() for e in (ev.JobAbandoned(j.id, "x"), ev.ItemQueued(j.item, j.stage, front=True))
        ]
        closing = [*calls, *jobs, ev.RunStopped("user", "enough")]
        end += [Entry(cut + 2 + i, whole[cut - 1].at, event) for i, event in enumerate(closing)]
    run = resumed(cut_file([*whole[:cut], *end], tmp_path / "a.sqlite"))
    assert run.status.state == "paused"
    assert run.resume().wait(60).kind == "budget"
    on = resumed(cut_file([*whole[:cut], *end], tmp_path / "b.sqlite"), paused=False)
    assert on.wait(60).kind == "budget"
    going = resumed(cut_file(whole[:cut], tmp_path / "c.sqlite"), paused=True)
    assert going.status.state == "paused"
    going.stop().wait(10)


class Real(lab.Simulated):
    """Says that it is a language model."""

    def describe(self) -> dict[str, object]:
        return {"kind": "real", "in_process": True}


def test_a_resume_records_its_models_and_a_simulated_one_once_used_stays_said(tmp_path: Path) -> None:
    entries = finished(tmp_path)
    first = entries[0].event
    assert isinstance(first, ev.RunStarted)
    real = {"task": [{"kind": "real"}], "reflection": [{"kind": "real"}], "patch": [{"kind": "real"}]}
    begun = [replace(entries[0], event=replace(first, llm=real)), *entries[1 : turns(entries)[40]]]
    path = cut_file(begun, tmp_path / "real.sqlite")
    assert not lab.open(path).status.simulated
    for llm, simulated in ((Real(LANDSCAPE), False), (lab.Simulated(LANDSCAPE), True), (Real(LANDSCAPE), True)):
        run = lab.resume(path, task=TASK, llm=llm, clock=lab.Virtual(), paused=True)
        run.stop().wait(10)
        latest = [e.event for e in run.entries if isinstance(e.event, ev.RunResumed)][-1]
        assert latest.llm["task"] == [llm.describe()]
        assert run.status.simulated is simulated
        assert run.figures is not None and RunFacts.of(run.state.started, run.state.llms).simulated is simulated


def test_a_limit_that_had_moved_is_forgotten_at_a_resume_and_when_the_setting_changes(tmp_path: Path) -> None:
    entries = finished(tmp_path)
    state = RunState().apply_all(entries[: turns(entries)[40]])
    for event in (ev.RunResumed("later"), ev.SettingChanged("concurrency", 64, 8)):
        apply(state, Entry(state.seq + 1, state.at, ev.LimitChanged("server", 64, 7, "429")))
        assert state.limits == {"server": 7}
        apply(state, Entry(state.seq + 1, state.at, event))
        assert state.limits == {}


def test_a_model_that_answers_in_real_time_is_refused_on_virtual_time_at_a_resume_too(tmp_path: Path) -> None:
    finished(tmp_path)
    model = lab.OpenAI("http://127.0.0.1:9/v1", model="m")
    with pytest.raises(lab.SetupError, match="answers in real time"):
        lab.resume(tmp_path / "whole.sqlite", task=TASK, llm=model, clock=lab.Virtual())


def test_of_two_simultaneous_resumes_one_goes_on_and_the_other_says_why_not(tmp_path: Path) -> None:
    entries = finished(tmp_path)
    path = cut_file(entries[: turns(entries)[40]], tmp_path / "cut.sqlite")
    start, runs, refused = threading.Barrier(4), [], []

    def take() -> None:
        start.wait()
        try:
            runs.append(resumed(path, paused=True))
        except lab.LogError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(runs), len(refused)) == (1, 3), refused
    assert all("being written by process" in why and "lab.open(path)" in why for why in refused)
    runs[0].stop().wait(10)


def test_a_file_that_grew_while_a_resume_looked_at_it_is_let_go(tmp_path: Path) -> None:
    entries = finished(tmp_path)
    path, early = cut_file(entries, tmp_path / "cut.sqlite"), RunState().apply_all(entries[:-5])
    with pytest.raises(lab.LogError, match="went on while this resume looked at it: try again"):
        _claimed(path, lab.Wall(), early)
    Writer(path, create=False).close()


CHILD = """
import sys
import flashevolve_lab as lab
landscape = lab.IndependentRules(n_rules=10, p_improve=0.6)
run = lab.start(lab.simulated_task(landscape, 20, 10), llm=lab.Simulated(landscape, speed=lab.FixedLatency(task_s=0.05, reflection_s=0.2)),
                budget=lab.Budget(metric_calls=5_000), schedule=lab.Pipelined(8), name="killed", folder=sys.argv[1])
print("begun", flush=True)
run.wait()
"""


def test_a_killed_process_leaves_a_run_that_resumes(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE)
    path = tmp_path / "killed.sqlite"
    try:
        assert child.stdout is not None and child.stdout.readline().strip() == b"begun"
        deadline = time.monotonic() + 60
        while lab.open(path).status.accepted < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    dead = lab.open(path).status
    assert dead.state == "interrupted" and dead.accepted >= 2
    run = lab.resume(path, task=TASK, llm=lab.Simulated(LANDSCAPE, speed=lab.FixedLatency(task_s=0.01, reflection_s=0.02)))
    assert run.status.state == "running" and run.status.accepted >= dead.accepted
    run.stop()
    assert run.wait(10).kind == "user"
    check(run.state)


def test_every_call_in_the_log_ended_once(tmp_path: Path) -> None:
    entries = finished(tmp_path)
    path = cut_file(entries[: turns(entries)[len(turns(entries)) // 2]], tmp_path / "cut.sqlite")
    resumed(path).wait(60)
    reader = Reader(path)
    events = [e.event for e in reader.entries()]
    reader.close()
    started = [e.call for e in events if isinstance(e, ev.CallStarted)]
    ended = [e.call for e in events if isinstance(e, ev.CallFinished)]
    assert sorted(started) == sorted(ended) and len(set(started)) == len(started)
