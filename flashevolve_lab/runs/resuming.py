"""Taking up a run again after a crash, an interrupt, a kill, or a stop.

The log is folded; what was in flight is marked lost and goes back to the front of its queue; replies that had arrived are not
paid again. One rule a change must keep: everything is checked before the file is written to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flashevolve_lab.algorithms import GEPA, Plan
from flashevolve_lab.core import RunState
from flashevolve_lab.core import inputs as on
from flashevolve_lab.core.events import RunStarted
from flashevolve_lab.engine import Clock, Scaled, Shell, Virtual, Wall
from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm import LLM, Limits
from flashevolve_lab.policies import Policies
from flashevolve_lab.runs.budget import Budget
from flashevolve_lab.runs.handle import Run
from flashevolve_lab.runs.knobs import recorded
from flashevolve_lab.runs.launch import check_models, log_of, roles, set_going
from flashevolve_lab.store import Reader
from flashevolve_lab.tasks import Task


def resume(
    path: str | Path,
    *,
    task: Task,
    llm: LLM | Sequence[LLM],
    algorithm: Plan | None = None,
    reflection_llm: LLM | Sequence[LLM] | None = None,
    patch_llm: LLM | Sequence[LLM] | None = None,
    budget: Budget | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    sample_timeout_s: float = 600.0,
    **knobs: Any,
) -> Run:
    """Go on with a run from its file; returns its handle at once.

    Args:
        path: The run's file.
        task: The same task again (a log cannot hold functions); its data and seed are compared by fingerprint.
        llm, reflection_llm, patch_llm: The models again (a log holds no keys).
        algorithm: Needed again when it was not a plain `GEPA` (a proposer or a prompt of your own).
        budget: A larger budget, for a run that had spent its own.
        limits, clock, sample_timeout_s: As for `start`; the clock must be of the kind the run began with.
        **knobs: Settings to change at once, as for ``run.set``; policies from a notebook cell must be given again.

    Raises:
        LogError: no such file, foreign, damaged, of a newer format, or being written by a living process.
        SetupError: the task, the algorithm or the clock is not the run's; nothing was changed.
    """
    path, clock, limits = Path(path), clock or Wall(), limits or Limits()
    state = _folded(path)
    started = state.started
    if started is None:
        raise SetupError(f"{path} has no run in it: start a new one")
    algorithm = _algorithm(started, algorithm)
    _compare(started, task, clock)
    models = roles(llm, reflection_llm, patch_llm)
    worker = algorithm.bind(task, started.seed)
    policies = Policies()
    changes = recorded(knobs | ({"budget": budget} if budget else {}), policies, worker.graph.names)
    for knob in ("schedule", "staleness"):
        policies(changes.get(knob, state.settings[knob]))
    check_models(models)
    shell = Shell(
        worker=worker,
        task=task,
        models=models,
        limits=limits,
        log=log_of(path, clock, create=False),
        policy=policies,
        clock=clock,
        state=state,
        sample_timeout_s=sample_timeout_s,
    )
    change: list[on.Input] = [on.SetKnobs(changes, "user", "at the resume")] if changes else []
    return set_going(shell, path, policies, [*change, on.Resume(datetime.now(UTC).isoformat(timespec="seconds"))])


def _folded(path: Path) -> RunState:
    reader = Reader(path)
    try:
        return RunState().apply_all(reader.entries())
    finally:
        reader.close()


def _algorithm(started: RunStarted, given: Plan | None) -> Plan:
    """The run's algorithm: as given, or rebuilt when it is a plain GEPA; it must describe itself as recorded."""
    facts = {k: v for k, v in started.algorithm.items() if k not in ("name", "proposer", "patcher")}
    algorithm = given if given is not None or started.algorithm.get("name") != "GEPA" else GEPA(**facts)
    if algorithm is None or algorithm.describe() != dict(started.algorithm):
        now = algorithm.describe() if algorithm else None
        raise SetupError(
            f"algorithm: the run was started with {dict(started.algorithm)}; pass the same algorithm=… (got {now})"
        )
    return algorithm


def _compare(started: RunStarted, task: Task, clock: Clock) -> None:
    if not isinstance(task, Task):
        raise SetupError(f"task: expected the lab.Task the run was started with; got {type(task).__name__}")
    now: Mapping[str, Any] = task.fingerprint()
    if changed := [part for part in ("train", "val", "seed") if now[part] != started.task.get(part)]:
        raise SetupError(f"task: its {' and '.join(changed)} differ from the run's. Pass the same task, or start a new run.")
    if not isinstance(clock, (Wall, Scaled, Virtual)) or clock.name != started.clock:
        raise SetupError(f"clock: the run is on {started.clock} time; pass the same kind of clock")
