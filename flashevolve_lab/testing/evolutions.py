"""The contract of an algorithm: what every `Plan` must do when it runs. Call `algorithm_contract` from a test of your own.

Owns whole runs on virtual time, and what is read from their logs. One rule a change must keep: it uses only the public door
(`start`, `open_run`, `resume`), so what it asks of an algorithm is what a user sees.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashevolve_lab.algorithms import Plan
from flashevolve_lab.core import Entry, RunState, apply, check, decode, encode
from flashevolve_lab.engine import Virtual
from flashevolve_lab.llm import LLM
from flashevolve_lab.policies import Pipelined
from flashevolve_lab.runs import Budget, open_run, resume, start
from flashevolve_lab.tasks import Task

IN_TIME_S = 120.0
"""A small run that takes longer than this hangs."""


def algorithm_contract(
    algorithm: Plan, task: Task, llm: LLM, *, folder: str | Path, metric_calls: int = 200, schedule: Any = None
) -> None:
    """An algorithm runs to its end within its budget, repeats itself for the same seed, replays, and goes on after a resume.

    Args:
        algorithm: As `start` takes it.
        task: A small one.
        llm: A simulated model: everything runs on virtual time.
        folder: Where the three logs are written.
        metric_calls: The budget, which it should be able to spend.
        schedule: By default ``Pipelined(4)``.

    Example:
        >>> import tempfile, flashevolve_lab as lab
        >>> world = lab.IndependentRules(n_rules=6)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     algorithm_contract(lab.GEPA(), lab.simulated_task(world, 12, 6), lab.Simulated(world), folder=folder)
    """
    given: dict[str, Any] = {"llm": llm, "schedule": schedule or Pipelined(4), "clock": Virtual(), "folder": folder}
    runs = [start(task, algorithm, budget=Budget(metric_calls=metric_calls), name=name, **given) for name in ("one", "two")]
    for run in runs:
        ended = run.wait(IN_TIME_S)
        assert ended.state == "stopped", f"it runs to its end; after {IN_TIME_S:g} s it is {ended.state}"
        assert ended.kind in ("budget", "done"), (
            f"it ends by its budget or because it is done; got {ended.kind}: {ended.reason}"
        )
    _holds(runs[0].entries)
    one, two = ([(entry.at, entry.event) for entry in run.entries[1:]] for run in runs)
    assert one == two, "the same seed gives the same log"
    replayed = open_run(runs[0].path)
    assert replayed.entries == runs[0].entries, "the file gives back the log"
    assert replayed.best == runs[0].best is not None, "it has a best artifact, and a replay finds the same"
    larger, spent = Budget(metric_calls=2 * metric_calls), runs[1].status.spent["metric_calls"]
    more = resume(runs[1].path, task=task, algorithm=algorithm, llm=llm, clock=Virtual(), budget=larger)
    again = more.wait(IN_TIME_S)
    _holds(more.entries)
    assert again.kind == "done" or again.spent["metric_calls"] > spent, "with a larger budget a resume goes on"


def _holds(entries: Sequence[Entry]) -> None:
    """Every invariant after every turn, the budget after every entry, and an end for everything that began."""
    state = RunState()
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        kind, body = encode(entry.event)
        assert decode(kind, json.loads(json.dumps(body, allow_nan=False))) == entry.event, f"every event survives JSON: {entry}"
        apply(state, entry)
        for name, limit in state.budget.items():
            used = entry.at if name == "seconds" else getattr(state.spent + state.reserved, name)
            assert used <= limit + 1e-6, f"the budget is never exceeded: {name} {used} of {limit} after {entry}"
        if following is None or following.at > entry.at:
            check(state)
    assert state.status == "stopped" and not state.jobs and not state.calls, "every job and every call that began has ended"
