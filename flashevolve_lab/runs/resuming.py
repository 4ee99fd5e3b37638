"""Taking up a run again after a crash, an interrupt, a kill, or a stop.

The log is folded; what was in flight is marked lost and goes back to the front of its queue; replies that had arrived are not
paid again. One rule a change must keep: everything is checked before the file is written to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flashevolve_lab.algorithms import GEPA, Merge, Plan
from flashevolve_lab.core import Entry, RunState
from flashevolve_lab.core import inputs as on
from flashevolve_lab.core.events import Continued, Paused, RunResumed, RunStarted
from flashevolve_lab.engine import Clock, Scaled, Shell, Virtual, Wall
from flashevolve_lab.errors import LogError, SetupError
from flashevolve_lab.llm import LLM, Limits
from flashevolve_lab.policies import Policies
from flashevolve_lab.runs.budget import Budget, check_prices
from flashevolve_lab.runs.handle import Run
from flashevolve_lab.runs.knobs import POLICY_KNOBS, UNCHANGED, Unchanged, given, limits_in_force, limits_recorded, recorded
from flashevolve_lab.runs.launch import (
    check_llms,
    check_models,
    check_patience,
    check_recordable,
    described,
    log_of,
    roles,
    set_going,
)
from flashevolve_lab.store import Reader, Writer
from flashevolve_lab.tasks import Task


def resume(
    path: str | Path,
    *,
    task: Task,
    llm: LLM | Sequence[LLM],
    algorithm: Plan | None = None,
    reflection_llm: LLM | Sequence[LLM] | None = None,
    patch_llm: LLM | Sequence[LLM] | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    sample_timeout_s: float | None = None,
    paused: bool | None = None,
    schedule: Any = UNCHANGED,
    staleness: Any = UNCHANGED,
    acceptance: Any = UNCHANGED,
    completion: Any = UNCHANGED,
    workers: Any = UNCHANGED,
    slots: Mapping[str, int] | Unchanged = UNCHANGED,
    concurrency: int | Unchanged = UNCHANGED,
    max_failures: int | Unchanged = UNCHANGED,
    budget: Budget | Unchanged = UNCHANGED,
) -> Run:
    """Go on with a run from its file; returns its handle at once.

    Args:
        path: The run's file.
        task: The same task again (a log cannot hold functions); its data and seed are compared by fingerprint.
        llm, reflection_llm, patch_llm: The models again (a log holds no keys).
        algorithm: Needed again when it was not a plain `GEPA` (a proposer or a prompt of your own).
        limits, sample_timeout_s: As for `start`; by default those in force when the run ended.
        clock: As for `start`; of the kind the run began with.
        paused: Whether it begins paused; by default as it was when it ended.
        schedule, staleness, acceptance, completion, workers, slots, concurrency, max_failures: Changed at once, as by ``run.set``;
            policies from a notebook cell must be given again.
        budget: A larger budget, for a run that had spent its own.

    Raises:
        LogError: no such file, foreign, damaged, of a newer format, or being written by a living process.
        SetupError: the task, the algorithm or the clock is not the run's; nothing was changed.
    """
    path, clock = Path(path), clock or Wall()
    entries = _read(path)
    state = RunState().apply_all(entries)
    started = state.started
    if started is None:
        raise SetupError(f"{path} has no run in it: start a new one")
    algorithm = _algorithm(started, algorithm)
    _compare(started, task, clock)
    models = roles(llm, reflection_llm, patch_llm)
    check_llms(models, clock)
    worker = algorithm.bind(task, started.seed)
    policies = Policies()
    knobs = given(
        schedule=schedule,
        staleness=staleness,
        acceptance=acceptance,
        completion=completion,
        workers=workers,
        slots=slots,
        concurrency=concurrency,
        max_failures=max_failures,
        budget=budget,
    )
    changes = recorded(knobs, policies, worker.graph.names)
    for knob in POLICY_KNOBS:
        if known := changes.get(knob, state.settings.get(knob)):  # an old log may not have it
            policies(known)
    limits, sample_timeout_s = _limits(state, limits, sample_timeout_s, changes)
    if "dollars" in changes.get("budget", state.budget):
        check_prices(model for of_role in models.values() for model in of_role)
    check_models(models)
    llms = described(models)
    check_recordable(llms)
    log = _claimed(path, clock, state)
    shell = Shell(
        worker=worker,
        task=task,
        models=models,
        limits=limits,
        log=log,
        policy=policies,
        clock=clock,
        state=state,
        sample_timeout_s=sample_timeout_s,
    )
    held = _was_paused(entries) if paused is None else paused
    return set_going(shell, path, policies, _first(changes, llms, held))


def _first(changes: Mapping[str, Any], llms: Mapping[str, Any], held: bool) -> list[on.Input]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return [on.SetKnobs(changes, "user", "at the resume"), on.Resume(now, llms), *([on.Pause()] if held else [])]


def _read(path: Path) -> list[Entry]:
    reader = Reader(path)
    try:
        reader.refuse_if_written()
        return reader.entries()
    finally:
        reader.close()


def _limits(
    state: RunState, limits: Limits | None, sample_timeout_s: float | None, changes: dict[str, Any]
) -> tuple[Limits, float]:
    """The limits from here on: as given, else as in force when the run ended. What differs joins the changes of settings."""
    kept, kept_s = limits_in_force(state.settings)
    sample_timeout_s = kept_s if sample_timeout_s is None else sample_timeout_s
    check_patience(sample_timeout_s)
    limits = limits or kept
    if not isinstance(limits, Limits):
        raise SetupError(f"limits: expected lab.Limits(…); got {type(limits).__name__}")
    limits = replace(limits, concurrency=changes.setdefault("concurrency", limits.concurrency))
    changes["limits"] = limits_recorded(limits, sample_timeout_s)
    return limits, sample_timeout_s


def _claimed(path: Path, clock: Clock, state: RunState) -> Writer:
    """The run's file, ours from here on, and still as it was read."""
    log = log_of(path, clock, create=False)
    if log.last != state.seq:
        log.close()
        raise LogError(f"{path} was resumed and went on while this resume looked at it: try again")
    return log


def _was_paused(entries: Sequence[Entry]) -> bool:
    """Whether the run was paused when it ended (a stop of a paused run leaves it so)."""
    gates = (e.event for e in reversed(entries) if isinstance(e.event, (Paused, Continued, RunStarted, RunResumed)))
    return isinstance(next(gates, None), Paused)


def _algorithm(started: RunStarted, given: Plan | None) -> Plan:
    """The run's algorithm: as given, or rebuilt when it is a plain GEPA; it must describe itself as recorded."""
    facts = {k: v for k, v in started.algorithm.items() if k not in ("name", "proposer", "patcher")}
    if merge := facts.get("merge"):
        facts["merge"] = Merge(**merge)
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
