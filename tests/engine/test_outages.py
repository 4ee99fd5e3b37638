"""What a program, a proposer or a pause cannot spoil: outages are not scores, limits hold, and a step ends with its pause."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import events as ev
from flashevolve_lab.core import inputs as on
from flashevolve_lab.tasks import Asker

LANDSCAPE = lab.IndependentRules(n_rules=10, p_improve=0.6)
TASK = lab.simulated_task(LANDSCAPE, n_train=20, n_val=10)


def start(folder: Path, task: lab.Task = TASK, **settings: Any) -> lab.Run:
    wanted = {"llm": lab.Simulated(LANDSCAPE), "budget": lab.Budget(metric_calls=300), "clock": lab.Virtual(), "folder": folder}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # small budgets on purpose
        return lab.start(task, **(wanted | settings))  # type: ignore[arg-type]


def of(run: lab.Run, kind: type) -> list[Any]:
    return [entry.event for entry in run.entries if isinstance(entry.event, kind)]


def task_with(program: Any) -> lab.Task:
    return lab.Task(train=TASK.train, val=TASK.val, seed=TASK.seed, program=program, metric=TASK.metric)


async def hides_everything(components: Any, example: Any, llm: Asker) -> str:
    """A program as people write them: it answers whatever happens."""
    try:
        return (await llm.complete(example["input"], system=components["prompt"], max_tokens=64)).text
    except Exception:
        return "fallback"


def test_a_program_that_hides_a_spent_budget_is_not_scored_for_it(tmp_path: Path) -> None:
    run = start(tmp_path, task_with(hides_everything), budget=lab.Budget(llm_calls=60, metric_calls=10_000))
    assert run.wait(30).kind == "budget"
    assert not [e for e in of(run, ev.SampleScored) if e.output == "fallback"]


def test_a_program_that_hides_a_provider_that_is_down_is_not_scored_for_it(tmp_path: Path) -> None:
    down = lab.Simulated(LANDSCAPE, faults=lab.Faults(server_error=1.0))
    run = start(tmp_path, task_with(hides_everything), llm=down, limits=lab.Limits(retries=1))
    with pytest.raises(lab.RunError, match="500 from the simulated server"):
        run.wait(30)
    assert not of(run, ev.SampleScored)


class Hangs:
    """A proposer that waits for something that never comes."""

    async def propose(self, brief: lab.Brief, llm: Asker) -> lab.Draft:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    def describe(self) -> dict[str, Any]:
        return {"name": "Hangs"}


def test_a_proposer_that_hangs_ends_its_job_and_the_run_says_why(tmp_path: Path) -> None:
    run = start(tmp_path, algorithm=lab.GEPA(proposer=Hangs()), sample_timeout_s=5.0)
    with pytest.raises(lab.RunError, match="propose took more than 5 s beside its model calls"):
        run.wait(30)


class Useless:
    """A proposer whose replies can never be used."""

    async def propose(self, brief: lab.Brief, llm: Asker) -> lab.Draft:
        raise lab.BadReply("no fenced block", "prose", "no_text")

    def describe(self) -> dict[str, Any]:
        return {"name": "Useless"}


def test_when_every_reflection_fails_no_depth_makes_it_look_like_an_end_in_peace(tmp_path: Path) -> None:
    run = start(tmp_path, algorithm=lab.GEPA(proposer=Useless()), schedule=lab.Pipelined(128), budget=lab.Budget(metric_calls=9_000))
    with pytest.raises(lab.RunError, match="failures in a row"):
        run.wait(60)


class Uncounted:
    """A server that tells no usage."""

    async def complete(self, request: lab.Request) -> lab.Reply:
        return lab.Reply("word " * 12, "stop")

    async def check(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return lab.Simulated(LANDSCAPE).describe()


def test_answers_of_a_server_that_does_not_count_are_charged_by_their_bytes(tmp_path: Path) -> None:
    run = start(tmp_path, llm=Uncounted(), budget=lab.Budget(metric_calls=120))
    with pytest.raises(lab.RunError):  # no reflection can be used
        run.wait(30)
    calls = run.frame("calls")
    assert (calls.completion_tokens == 1 + 60 // 3).all() and (calls.prompt_tokens > 0).all()


def test_a_prompt_is_reserved_at_a_token_a_byte_the_most_it_can_be() -> None:
    request = lab.Request(({"role": "user", "content": "7" * 100 + "é"},))
    assert request.input_tokens_bound() >= 102


# --- pause and step -------------------------------------------------------------------------------------------------------


def jobs(run: lab.Run) -> list[str]:
    return [e.stage for e in of(run, ev.JobStarted)]


def test_what_a_step_did_not_use_ends_with_its_pause(tmp_path: Path) -> None:
    run = start(tmp_path, paused=True, schedule=lab.Sequential())
    assert run.step(3, stage="rollout") == []
    run.step(stage="validate")
    assert jobs(run) == ["validate"]
    run.step_soon(3, "gate")
    run.step(stage="rollout")
    assert jobs(run) == ["validate", "rollout"]
    run.stop()
    run.wait(10)


def test_a_job_that_was_stepped_is_held_by_the_next_pause_like_any_other() -> None:
    from flashevolve_lab.testing import PureRun, Toy

    run = PureRun(Toy())
    run.turn(on.Pause())
    for job in run.state.jobs.values():
        job.stepped = True
    run.turn(on.Continue())
    assert run.state.jobs and not any(job.stepped for job in run.state.jobs.values())


def test_a_program_that_fails_on_the_whole_seed_stops_the_run_with_its_error_before_anything_is_reflected(tmp_path: Path) -> None:
    def program(components: Any, example: Any, llm: Asker) -> str:
        raise ZeroDivisionError("division by zero")

    run = start(tmp_path, task_with(program))
    with pytest.raises(lab.RunError, match="the program failed on all 10 validation examples.*ZeroDivisionError"):
        run.wait(30)
    assert run.status.spent["llm_calls"] == 0


def test_a_policy_that_fails_is_said_aloud_once(tmp_path: Path) -> None:
    class Broken:
        def judge(self, item: lab.StaleItem) -> lab.Verdict:
            raise KeyError("gap")

    run = start(tmp_path, schedule=lab.Pipelined(8), staleness=Broken())
    run.wait(30)
    assert [e.message for e in of(run, ev.Warned) if e.kind == "policy"][0].startswith("accepted because the policy Broken failed")
    assert len([e for e in of(run, ev.Warned) if e.kind == "policy"]) == 1


def test_a_policy_that_fails_only_at_commit_is_said_aloud_too(tmp_path: Path) -> None:
    class BrokenAtCommit:
        def judge(self, item: lab.StaleItem) -> lab.Verdict:
            if item.where == "commit":
                raise KeyError("score")
            return lab.Verdict("accept", "fine")

    run = start(tmp_path, schedule=lab.Pipelined(8), staleness=BrokenAtCommit())
    run.wait(30)
    assert [e.kind for e in of(run, ev.Warned)].count("policy") == 1


def test_a_run_may_be_stopped_when_it_has_ended_already(tmp_path: Path) -> None:
    run = start(tmp_path)
    run.wait(30)
    assert run.stop().status.kind == "budget"


PRINTS = """
import tempfile
import flashevolve_lab as lab
landscape = lab.IndependentRules(n_rules=10)
task = lab.simulated_task(landscape, 20, 10)
for i in range(25):
    run = lab.start(task, llm=lab.Simulated(landscape), budget=lab.Budget(metric_calls=200), clock=lab.Virtual(), folder=tempfile.mkdtemp())
    run.stop()
    while not run._shell.done.done():
        print("a", "b", "c", "d")
"""


def test_a_run_may_end_while_another_thread_prints() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PRINTS], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
