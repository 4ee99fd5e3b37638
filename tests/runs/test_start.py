"""Everything that can be wrong before a run is found by `lab.start`, says what to do, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import math
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import events as ev
from flashevolve_lab.runs.launch import check_models

LAND = lab.IndependentRules(n_rules=10, p_improve=0.8)
TASK = lab.simulated_task(LAND, 20, 10)
ROWS = [{"input": "a"}, {"input": "b"}, {"input": "c"}]


class Other:
    """A model of the user's own; ``how`` it behaves before a run."""

    price = None

    def __init__(self, check: Callable[[], None] = lambda: None, facts: Any = None) -> None:
        self._check, self._facts, self.calls = check, facts, 0

    async def complete(self, request: lab.Request) -> lab.Reply:
        self.calls += 1
        return lab.Reply("x")

    async def check(self) -> None:
        self._check()

    def describe(self) -> Any:
        return {"kind": "other", "in_process": True} if self._facts is None else self._facts


class Priced(Other):
    price = (1.0, 4.0)


class Silent:
    """A proposer without `describe`."""

    async def propose(self, brief: Any, llm: Any) -> Any: ...


class Talkative(Silent):
    def describe(self) -> Any:
        return {"name": "Talkative", "self": self}


def no_server() -> None:
    raise ConnectionError("nobody listens")


def task_of(**changes: Any) -> lab.Task:
    parts: dict[str, Any] = {"train": ROWS, "val": ROWS, "seed": "Seed.", "program": lab.Prompt(), "metric": lambda e, o: 0.5}
    return lab.Task(**{**parts, **changes})


def start(folder: Path, **options: Any) -> lab.Run:
    given = {"llm": lab.Simulated(LAND), "budget": lab.Budget(metric_calls=1000), "folder": folder, "clock": lab.Virtual()}
    return lab.start(options.pop("task", TASK), options.pop("algorithm", None), **{**given, **options})


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "task": ({"task": "my task"}, r"task: expected lab\.Task\(train=.*\); got str"),
    "no llm": ({"llm": None}, r"llm for the role 'task': expected lab\.OpenAI.*; got None"),
    "llm class": ({"llm": lab.Simulated}, "llm for the role 'task': expected .* got <class"),
    "llm name": ({"llm": "gpt-5"}, "llm for the role 'task': expected .* got 'gpt-5'"),
    "llm client": ({"llm": object()}, "llm for the role 'task': expected .* an object with complete, check and describe"),
    "llm list": ({"llm": []}, "llm for the role 'task': expected"),
    "reflection": ({"reflection_llm": 5}, "llm for the role 'reflection': expected .* got 5"),
    "unreachable": ({"llm": Other(no_server)}, "ConnectionError: nobody listens"),
    "facts": ({"llm": Other(facts={"kind": "x", "in_process": True, "client": object()})}, "describe.*JSON"),
    "budget": ({"budget": 100}, r"budget: expected lab\.Budget\(metric_calls=…\); got int"),
    "budget of unknown limits": ({"budget": {"calls": 9}}, "budget: there is no limit of calls; the limits are metric_calls, "),
    "limits": ({"limits": 16}, r"limits: expected lab\.Limits\(…\); got int"),
    "clock": ({"clock": lab.Virtual}, r"clock: expected lab\.Wall\(\), lab\.Scaled\(factor\) or lab\.Virtual\(\); got type"),
    "clock name": ({"clock": "virtual"}, r"clock: expected lab\.Wall\(\).* got str"),
    "virtual": (
        {"llm": Other(facts={"kind": "real", "simulated": True})},  # as a simulated server over HTTP
        r"clock: Virtual\(\) needs lab\.Simulated\(…\), or .*; .* answers in real time",
    ),
    "seed": ({"seed": "7"}, "seed: expected an integer; got str"),
    "seed that is no number": ({"seed": True}, "seed: expected an integer; got bool"),
    "long name": ({"name": "n" * 300}, "name: expected at most 200 bytes, as it names a file; got 300 characters: 'nnn"),
    "algorithm": ({"algorithm": lab.GEPA}, r"algorithm: expected lab\.GEPA\(…\); got <class"),
    "algorithm name": ({"algorithm": "gepa"}, r"algorithm: expected lab\.GEPA\(…\); got 'gepa'"),
    "minibatch": ({"algorithm": lab.GEPA(minibatch=21)}, r"minibatch=21\) is larger than the train set of 20 examples"),
    "describe": ({"algorithm": lab.GEPA(proposer=Talkative())}, "describe.*JSON"),
    "schedule": ({"schedule": 16}, r"schedule: expected Sequential\(\), Batched\(p, n\), Pipelined\(depth\).*; got 16"),
    "staleness": ({"staleness": "guarded"}, r"staleness: expected Full\(\), Guarded\(max_gap\).*; got 'guarded'"),
    "slots": ({"slots": {"gates": 2}}, "slots: there is no stage 'gates'; the stages are rollout"),
    "slot count": ({"slots": {"gate": 0}}, r"slots\['gate'\]: expected an integer of at least 1; got 0"),
    "name": ({"name": "a/b"}, "name: expected letters, digits, spaces, '.', '-' and '_'; got 'a/b'"),
    "no name": ({"name": ""}, "name: expected letters.* got ''"),
    "number name": ({"name": 7}, "name: expected letters.* got 7"),
    "upwards": ({"name": "../up"}, "name: expected letters.* got '../up'"),
    "few metric calls": ({"budget": lab.Budget(metric_calls=15)}, "budget: .* allows no proposal .* Raise it, or use fewer"),
    "few llm calls": ({"budget": lab.Budget(llm_calls=12)}, "allows no proposal"),
    "few tokens": ({"budget": lab.Budget(tokens=10)}, r"allows no proposal \(10 tokens, and one call alone may need \d+\)"),
    "few dollars": (
        {"budget": lab.Budget(dollars=1e-6), "llm": Priced()},
        r"allows no proposal \(1 tokens, and one call alone may need \d+\)",
    ),
    "dollars": ({"budget": lab.Budget(dollars=3)}, r"budget: dollars need a price: lab\.OpenAI\(…, price="),
    "patience": ({"sample_timeout_s": 0}, r"sample_timeout_s: expected a number of seconds above 0; got 0"),
    "patience text": ({"sample_timeout_s": "60"}, "sample_timeout_s: expected a number of seconds above 0; got '60'"),
    "show": ({"task": task_of(show=lambda example: example["question"])}, r"show: .* KeyError: 'question'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_with_what_was_expected_and_leaves_no_file(tmp_path: Path, case: str) -> None:
    options, words = WRONG[case]
    folder = tmp_path / "runs"
    with pytest.raises(lab.SetupError, match=words):
        start(folder, **options)
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_task_with_a_long_name_still_gets_a_file(tmp_path: Path) -> None:
    run = start(tmp_path, task=task_of(name="ü" * 300), paused=True)
    run.stop().wait(10)
    assert run.path.exists() and len(run.path.name.encode()) < 250


@pytest.mark.parametrize("timeout", ["x", True, float("nan"), [1]], ids=repr)
def test_a_wait_for_no_number_of_seconds_is_refused(tmp_path: Path, timeout: Any) -> None:
    run = start(tmp_path, paused=True)
    with pytest.raises(lab.SetupError, match=r"wait\(timeout\): expected a number of seconds, or None"):
        run.wait(timeout)
    run.stop().wait(10)


@pytest.mark.parametrize("path", [5, None, b"r.sqlite"], ids=repr)
def test_to_open_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(lab.SetupError, match="open: expected the path of a run's file"):
        lab.open(path)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("precious")
    with pytest.raises(lab.SetupError, match="cannot write .*runs.*choose another folder"):
        start(tmp_path / "runs")
    assert (tmp_path / "runs").read_text() == "precious"


def test_nothing_is_asked_of_a_model_before_everything_is_checked(tmp_path: Path) -> None:
    llm = Other()
    with pytest.raises(lab.SetupError):
        start(tmp_path, llm=llm, slots={"gates": 1})
    assert llm.calls == 0


@pytest.mark.parametrize("name", ["metric_calls", "llm_calls", "tokens", "dollars", "seconds", "proposals"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "100", True, [5]], ids=repr)
def test_a_limit_of_a_budget_is_a_number_above_zero(name: str, value: Any) -> None:
    with pytest.raises(lab.SetupError, match=rf"Budget\({name}=…\): expected a number above 0; got"):
        lab.Budget(**{name: value})


def test_a_budget_has_at_least_one_limit() -> None:
    with pytest.raises(lab.SetupError, match=r"Budget\(\): expected at least one limit of metric_calls, .*proposals; got none"):
        lab.Budget()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"perfect": "1"}, "perfect: expected a finite number; got '1'"),
        ({"perfect": math.nan}, "perfect: expected a finite number; got nan"),
        ({"worst": None}, "worst: expected a finite number; got None"),
        ({"worst": -math.inf}, "worst: expected a finite number; got -inf"),
        ({"name": 5}, "name: expected a text; got 5"),
        ({"show": "question"}, r"show: expected a function \(example\); got str"),
        (
            {"program": lab.Prompt(input="question")},
            r"Prompt\(input='question'\): example 0 has no such field; it has \['input'\]",
        ),
        ({"metric": lambda output: 1.0}, r"metric: expected a function \(example, output\)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_task_that_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(lab.SetupError, match=words):
        task_of(**changes)


def test_a_small_budget_is_told_by_a_warning_that_points_to_the_callers_line_and_in_the_log(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match="the budget allows about 6 proposals: 10 for the seed, then 6 and in one of five"
    ) as told:
        run = lab.start(TASK, llm=lab.Simulated(LAND), budget=lab.Budget(metric_calls=60), folder=tmp_path, clock=lab.Virtual())
    assert told[0].filename == __file__
    run.wait(20)
    assert [entry.event.kind for entry in run.entries if isinstance(entry.event, ev.Warned)] == ["budget"]


@pytest.mark.parametrize(
    "budget", [lab.Budget(tokens=10_000_000), lab.Budget(seconds=3600), lab.Budget(tokens=4_000)], ids=repr
)
def test_no_budget_is_said_to_be_without_a_limit(budget: lab.Budget, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = start(tmp_path, budget=budget, paused=True)
    run.stop().wait(10)
    assert "no limit" not in run.status.forecast
    assert ("tokens of input a call" if budget.tokens else "3600 seconds depends on the models' speed") in run.status.forecast


def test_what_was_in_force_at_the_start_is_in_the_log(tmp_path: Path) -> None:
    limits = lab.Limits(concurrency=5, deadline_s=30, retries=1, backoff_s=2, hedge=0.9)
    run = start(tmp_path, limits=limits, sample_timeout_s=math.inf, paused=True)
    run.stop().wait(10)
    settings = run.state.started.settings
    assert settings["concurrency"] == 5
    assert settings["limits"] == {"deadline_s": 30, "retries": 1, "backoff_s": 2, "hedge": 0.9, "sample_timeout_s": "inf"}


def test_a_model_that_does_not_say_whether_it_is_ready_is_waited_for_only_so_long() -> None:
    class Hangs(Other):
        async def check(self) -> None:
            await asyncio.Event().wait()

    class Blocks(Other):
        async def check(self) -> None:
            threading.Event().wait(30)

    with pytest.raises(lab.SetupError, match="Hangs.*did not answer within 0.05 s. Is the server starting"):
        check_models({"task": [Other(), Hangs()]}, 0.05)
    with pytest.raises(lab.SetupError, match="Blocks.*did not answer within 0.05 s"):
        check_models({"task": [Blocks()]}, 0.05, grace_s=0.05)


def test_a_check_closes_only_what_a_model_opens_for_each_loop() -> None:
    class Shared(Other):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    class PerLoop(Shared):
        per_loop = True

    shared, per_loop = Shared(), PerLoop()
    check_models({"task": [shared], "reflection": [per_loop]})
    assert (shared.closed, per_loop.closed) == (0, 1)


def test_a_large_budget_is_not_commented(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(tmp_path).wait(20)


def test_names_come_from_the_task_and_the_time_and_are_never_used_twice(tmp_path: Path) -> None:
    runs = [start(tmp_path, budget=lab.Budget(proposals=10)) for _ in range(3)]
    assert len({run.name for run in runs}) == 3
    assert all(run.name.startswith("simulated-IndependentRules-") for run in runs)
    assert sorted(path.stem for path in tmp_path.glob("*.sqlite")) == sorted(run.name for run in runs)
    for run in runs:
        run.wait(20)


def test_a_name_of_ones_own_is_kept_and_an_existing_one_is_not_overwritten(tmp_path: Path) -> None:
    run = start(tmp_path, name="Äpfel 2.1")
    run.wait(20)
    before = run.path.read_bytes()
    assert (run.name, run.path) == ("Äpfel 2.1", tmp_path / "Äpfel 2.1.sqlite")
    with pytest.raises(lab.SetupError, match=r"a run 'Äpfel 2.1' exists in .*: choose another, or look at it with lab.open"):
        start(tmp_path, name="Äpfel 2.1")
    assert run.path.read_bytes() == before


def test_an_odd_task_name_becomes_a_harmless_file_name(tmp_path: Path) -> None:
    run = start(
        tmp_path,
        task=task_of(name="../../etc/passwd \u202e</script>"),
        algorithm=lab.GEPA(minibatch=2),
        budget=lab.Budget(proposals=10),
    )
    assert run.path.parent == tmp_path
    run.stop().wait(10)


def test_start_returns_at_once_and_the_first_entries_are_there(tmp_path: Path) -> None:
    run = start(tmp_path, paused=True)
    assert run.status.state == "paused"
    assert run.state.started.task["n_val"] == 10
    assert run.entries[0].event.settings["schedule"] == {"name": "Pipelined", "depth": 16}
    run.stop().wait(10)


def test_a_proposer_needs_no_description_of_itself(tmp_path: Path) -> None:
    run = start(tmp_path, algorithm=lab.GEPA(proposer=Silent()), paused=True)
    assert run.state.started.algorithm["proposer"]["name"] == "Silent"
    run.stop().wait(10)


def test_a_budget_may_be_a_dictionary(tmp_path: Path) -> None:
    run = start(tmp_path, budget={"metric_calls": 300, "seconds": 60.0}, paused=True)
    assert run.status.budget == {"metric_calls": 300, "seconds": 60.0}
    run.stop().wait(10)


def test_a_proposer_may_be_a_plain_function_which_then_works_in_a_thread(tmp_path: Path) -> None:
    where: list[str] = []

    class Plain:
        def propose(self, brief: lab.Brief, llm: Any) -> lab.Draft:
            where.append(threading.current_thread().name)
            text = llm.ask("Rewrite this.", max_tokens=50)
            return lab.Draft(f"{brief.current}\n{len(where)}", text)

    run = start(tmp_path, algorithm=lab.GEPA(proposer=Plain()), budget=lab.Budget(metric_calls=120))
    run.wait(30)
    assert set(where) == {"lab-user-code"} and run.status.proposals > 1
    assert "reflection" in {entry.event.role for entry in run.entries if isinstance(entry.event, ev.CallStarted)}


def told_of_company(run: lab.Run) -> list[str]:
    return [entry.event.message for entry in run.entries if isinstance(entry.event, ev.Warned) and entry.event.kind == "runs"]


def test_a_run_beside_another_on_the_same_server_says_so_once_and_otherwise_nothing(tmp_path: Path) -> None:
    def begin(name: str, url: str | None) -> lab.Run:
        model = Other(facts={"kind": "other", "base_url": url} if url else {"kind": "other"})
        return lab.start(TASK, llm=model, budget=lab.Budget(metric_calls=500), folder=tmp_path, name=name, paused=True)

    runs = [begin("one", "http://127.0.0.1:9/v1"), begin("two", "http://127.0.0.1:8/v1"), begin("three", None), begin("four", None)]
    assert [told_of_company(run) for run in runs] == [[], [], [], []]
    fifth = begin("five", "http://127.0.0.1:9/v1")
    (told,) = told_of_company(fifth)
    assert "'one'" in told and "http://127.0.0.1:9/v1" in told
    for run in (*runs, fifth):
        run.stop()
        run.wait(20)
    after = begin("after", "http://127.0.0.1:9/v1")
    assert told_of_company(after) == []
    after.stop()
    after.wait(20)
