"""The short form of ``tests/benchmarks/chaos.py``: random runs on virtual time, audited entry by entry, and a run that is killed."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import Entry, Spend
from flashevolve_lab.core import events as ev


@pytest.fixture(scope="module")
def chaos() -> ModuleType:
    path = Path(__file__).parent / "benchmarks" / "chaos.py"
    spec = importlib.util.spec_from_file_location("chaos", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["chaos"] = module  # where its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(5_000, 5_030))
def test_a_random_run_breaks_no_invariant_and_exceeds_no_budget_at_any_moment(chaos: ModuleType, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some of these budgets are small on purpose
        entries = chaos.random_run(seed)
    assert isinstance(entries[-1].event, ev.RunStopped) and entries[-1].event.kind in ("budget", "done", "failures")


def test_a_random_run_is_disturbed_in_its_middle_and_the_same_each_time(chaos: ModuleType) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        logs = [chaos.random_run(seed) for seed in [*range(5_030, 5_036), *range(5_030, 5_036)]]
    for one, again in zip(logs[:6], logs[6:], strict=True):
        assert [(entry.at, entry.event) for entry in one[1:]] == [(entry.at, entry.event) for entry in again[1:]]
    assert sum(chaos.happened(log) for log in logs[:6]) >= 10
    paused = [i for log in logs[:6] for i, entry in enumerate(log) if isinstance(entry.event, ev.Paused) and entry.at > 0]
    assert paused and any(isinstance(entry.event, ev.JobStarted) and entry.event.stepped for log in logs[:6] for entry in log)


# --- reconciling: the log and the server, call by call ----------------------------------------------------------------------

RESERVED = Spend(llm_calls=1, tokens=50)
ANSWER = lab.Reply("yes", "stop", 10, 2)


def begun(number: int, request: str = "q") -> ev.CallStarted:
    return ev.CallStarted(f"c{number}", "j1", "task", "k", 0, RESERVED, request)


def replied(number: int, reply: lab.Reply = ANSWER) -> ev.CallFinished:
    return ev.CallFinished(
        f"c{number}", "ok", Spend(llm_calls=1, tokens=12), reply.prompt_tokens, reply.completion_tokens, text=reply.text
    )


def lost(number: int, spent: Spend = RESERVED) -> ev.CallFinished:
    return ev.CallFinished(f"c{number}", "cancelled", spent, text="lost with its process; charged as reserved")


def log_of(*events: ev.CallStarted | ev.CallFinished) -> list[Entry]:
    return [Entry(number, 0.0, event) for number, event in enumerate(events, 1)]


def test_lost_calls_explain_what_never_arrived_and_the_answers_nobody_heard(chaos: ModuleType) -> None:
    log = log_of(begun(1), begun(2), begun(3), replied(1), lost(2), lost(3))
    heard, unheard = chaos.Seen("q", ANSWER), chaos.Seen("q", ANSWER)
    for arrived, unsent, wasted in (
        ([heard], 2, 0),
        ([heard, chaos.Seen("q")], 1, 0),
        ([heard, unheard, chaos.Seen("q")], 0, 12),
    ):
        ends = chaos.reconcile(log, arrived)
        assert (ends["calls"], ends["lost"], ends["never sent"]) == (3, 2, unsent)
        assert (ends["tokens in the log"], ends["tokens of answers lost"]) == (12, wasted)


def test_what_log_and_server_do_not_agree_on_is_told(chaos: ModuleType) -> None:
    seen, other = chaos.Seen("q", ANSWER), lab.Reply("no", "stop", 10, 2)
    cases = {
        "does not know": (log_of(begun(1), replied(1)), [seen, chaos.Seen("another", ANSWER)]),
        "1 calls in the log, 2 requests": (log_of(begun(1), replied(1)), [seen, seen]),
        "1 calls never arrived": (log_of(begun(1), replied(1)), []),
        "never gave": (log_of(begun(1), replied(1, other)), [seen]),
        "charged as reserved": (log_of(begun(1), lost(1, Spend(llm_calls=1))), [seen]),
        "no call in the log waited for": (log_of(begun(1), begun(2), replied(1), refused(2)), [seen, seen]),
    }
    for sentence, (log, arrived) in cases.items():
        with pytest.raises(AssertionError, match=sentence):
            chaos.reconcile(log, arrived)


def refused(number: int) -> ev.CallFinished:
    return ev.CallFinished(f"c{number}", "refused", Spend(llm_calls=1, tokens=10), text="400")


@pytest.mark.timeout(120)
def test_a_run_that_is_killed_and_resumed_reconciles_with_its_server_call_by_call(chaos: ModuleType) -> None:
    chaos.kills(2, seed=1, metric_calls=1000)
