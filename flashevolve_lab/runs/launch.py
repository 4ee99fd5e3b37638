"""Starting a run: everything that can be wrong is found here, before anything is spent.

Owns the checks, the forecast and the wiring of algorithm, models, log and shell. One rule a change must keep: `start` returns at
once with a handle, or raises a `SetupError` that says what to do.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import json
import re
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flashevolve_lab.algorithms import GEPA, Plan
from flashevolve_lab.core import inputs as on
from flashevolve_lab.core.events import RunStarted, Warned
from flashevolve_lab.engine import Clock, Scaled, Shell, Virtual, Wall
from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm import LLM, Limits
from flashevolve_lab.policies import Complete, Fixed, Guarded, Pipelined, Policies, Reflective, Strict
from flashevolve_lab.runs.budget import Budget, budget_from, check_prices
from flashevolve_lab.runs.handle import Run
from flashevolve_lab.runs.knobs import SAMPLE_TIMEOUT_S, limits_recorded, recorded
from flashevolve_lab.store import Writer
from flashevolve_lab.tasks import Task

FLASHEVOLVE: dict[str, Any] = {
    "schedule": Pipelined("auto"),
    "staleness": Reflective(onto="best", batch=16, queue=256, untouched=False),
    "completion": Complete("front"),
    "slots": {"validate": 4},
}
"""The configuration that came out best of what was measured (`tests/benchmarks/compare.py`): ``lab.start(…, **lab.FLASHEVOLVE)``.

The smallest depth that keeps the server busy; few validations at once, so that what passes its gate meanwhile goes stale, and is
distilled, up to sixteen texts at once, onto the best before it costs a validation; validations that are proven unable to win are
stopped. A patch model that cannot unite texts well may want ``batch=1``.
"""
FOLDER = "data/runs"
NAME_MAX = 200  # bytes: a file's name may have 255, with the date and the endings
BEGUN_S = 5.0
CHECK_S = 15.0  # how long a model may take to say that it is ready
FEW = 10  # a forecast of fewer proposals than this is worth a warning


@dataclass(slots=True)
class _Known:
    """What it takes to make another handle of a run, and the last one that was made, while somebody has it."""

    path: Path
    policies: Policies
    handle: weakref.ref[Run]


_running: weakref.WeakKeyDictionary[Shell, _Known] = weakref.WeakKeyDictionary()


def start(
    task: Task,
    algorithm: Plan | None = None,
    *,
    llm: LLM | Sequence[LLM],
    budget: Budget | Mapping[str, float],
    reflection_llm: LLM | Sequence[LLM] | None = None,
    patch_llm: LLM | Sequence[LLM] | None = None,
    schedule: Any = None,
    staleness: Any = None,
    completion: Any = None,
    workers: Any = None,
    acceptance: Any = None,
    slots: Mapping[str, int] | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    seed: int = 0,
    name: str | None = None,
    folder: str | Path = FOLDER,
    paused: bool = False,
    sample_timeout_s: float = SAMPLE_TIMEOUT_S,
) -> Run:
    """Start an evolution; returns its handle at once.

    Args:
        task: Data, program and metric.
        algorithm: What evolves it; by default `GEPA()`.
        llm: The model that programs call, and that reflects unless ``reflection_llm`` is given. A list: the same role on
            several servers, a call goes to the one with the most room.
        budget: What may be spent; never exceeded. Also as a dictionary: ``{"metric_calls": 2_000}``.
        reflection_llm: The model that proposes.
        patch_llm: The model that rewrites stale artifacts; by default the one that proposes.
        schedule: `Sequential`, `Batched(p, n)` or `Pipelined(depth)` (the default, depth 16); ``Pipelined("auto")`` finds its own.
        staleness: `Full`, `Guarded(max_gap)` (the default, 8), or an object with ``judge(item)``.
        workers: Who changes worker slots in the run: `Fixed` (the default: nobody), `RateBalanced`, `ServerAware` or an object with
            ``judge(load)``.
        completion: When a partial result may go on: `Complete` (the default: never) or `Speculative`.
        acceptance: When a child passes its gate: `Strict` (the default), `Tolerant(margin)`, `Repeated(times)`, or an object with
            ``judge(gate)``.
        slots: Worker slots by stage; by default as many as the schedule's depth.
        limits: Calls in flight, deadline and retries.
        clock: `Wall()`, `Scaled(factor)` or `Virtual()`; the last two for simulated models.
        seed: Of every random draw.
        name: Of the run and its file; by default from the task and the time.
        folder: Where the file ``<name>.sqlite`` is written.
        paused: Start paused, to go step by step.
        sample_timeout_s: Lab seconds a program and a metric may take on one example.

    Raises:
        SetupError: something is wrong; nothing has been spent.
    """
    algorithm = GEPA() if algorithm is None else algorithm
    clock = Wall() if clock is None else clock
    limits = Limits() if limits is None else limits
    models = roles(llm, reflection_llm, patch_llm)
    budget = budget_from(budget)
    _check_arguments(task, algorithm, models, budget, limits, clock, seed)
    check_patience(sample_timeout_s)
    worker = algorithm.bind(task, seed)
    forecast, few = _forecast(algorithm, task, budget, models)
    check_models(models)
    policies = Policies()
    knobs = {"schedule": schedule or Pipelined(), "staleness": staleness or Guarded(), "concurrency": limits.concurrency}
    knobs["completion"], knobs["workers"] = completion or Complete(), workers or Fixed()
    knobs["acceptance"] = acceptance or Strict()
    settings = recorded({**knobs, "slots": slots or {}}, policies, worker.graph.names)
    settings["limits"] = limits_recorded(limits, sample_timeout_s)
    path = _path(name, task.name, Path(folder))
    started = _announced(path.stem, task, algorithm, models, budget, clock, seed, settings, worker.graph.names, forecast)
    check_recordable(started.algorithm, started.llm, started.settings)
    shell = Shell(
        worker=worker,
        task=task,
        models=models,
        limits=limits,
        log=log_of(path, clock, create=True),
        policy=policies,
        clock=clock,
        sample_timeout_s=sample_timeout_s,
    )
    first: list[on.Input] = [on.Start(started), *([on.Pause()] if paused else [])]
    return set_going(shell, path, policies, first + ([Warned("budget", forecast)] if few else []))


def _announced(
    name: str,
    task: Task,
    algorithm: Plan,
    models: Mapping[str, Sequence[LLM]],
    budget: Budget,
    clock: Clock,
    seed: int,
    settings: Mapping[str, Any],
    stages: tuple[str, ...],
    forecast: str,
) -> RunStarted:
    """The first entry of the log: all a reader needs to know about the run."""
    return RunStarted(
        run=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        clock=clock.name,
        algorithm=algorithm.describe(),
        stages=stages,
        settings=settings,
        budget=budget.limits(),
        task={**task.fingerprint(), "n_train": len(task.train), "n_val": len(task.val), "forecast": forecast},
        llm=described(models),
        lab=_version(),
    )


def log_of(path: Path, clock: Clock, *, create: bool) -> Writer:
    """The run's file, open for writing. On virtual time, where nothing is paid, it is written a few times a second only."""
    return Writer(path, create=create, every_s=0.2 if isinstance(clock, Virtual) else 0.0)


def described(models: Mapping[str, Sequence[LLM]]) -> dict[str, Any]:
    """Role → what its models say of themselves, for the log. Ask after `check_models`: a check may teach a model about itself."""
    return {role: [model.describe() for model in of_role] for role, of_role in models.items()}


def set_going(shell: Shell, path: Path, policies: Policies, first: Sequence[on.Input]) -> Run:
    """Start the engine's thread; returns when the first entries are in the log (milliseconds)."""
    run = Run(path, shell, policies)
    company = _company(shell)
    _running[shell] = _Known(path.resolve(), policies, weakref.ref(run))
    shell.start([*first, *company])
    shell.begun.wait(BEGUN_S)
    return run


def _company(shell: Shell) -> list[Warned]:
    """A warning for the log when another run of this process sends its calls to the same server: what is timed is then shared."""
    mine = _addresses(shell)
    for other, known in list(_running.items()):
        if not other.done.done() and (shared := sorted(mine & _addresses(other))):
            told = f"the run {known.path.stem!r} of this process also sends its calls to {', '.join(shared)}"
            return [Warned("runs", f"{told}: times and rates of both are those of a shared server")]
    return []


def _addresses(shell: Shell) -> set[str]:
    """Of the servers that a run's models stand on, as the log has them."""
    return {str(address) for model in shell.gateway.models if (address := model.describe().get("base_url"))}


def running_at(path: Path) -> Run | None:
    """The handle of the run that this process executes at this path, or None."""
    for shell, known in list(_running.items()):
        if known.path == path.resolve() and not shell.done.done():
            run = known.handle() or Run(path, shell, known.policies)
            known.handle = weakref.ref(run)
            return run
    return None


def roles(
    llm: LLM | Sequence[LLM], reflection_llm: LLM | Sequence[LLM] | None, patch_llm: LLM | Sequence[LLM] | None
) -> dict[str, tuple[LLM, ...]]:
    """Role → its models; a role that was not given uses the model of the one before."""
    reflection = llm if reflection_llm is None else reflection_llm
    patch = reflection if patch_llm is None else patch_llm
    return {"task": _listed(llm), "reflection": _listed(reflection), "patch": _listed(patch)}


def _listed(llm: LLM | Sequence[LLM]) -> tuple[LLM, ...]:
    return tuple(llm) if isinstance(llm, Sequence) and not isinstance(llm, str) else (llm,)


def _check_arguments(
    task: Any, algorithm: Any, models: Mapping[str, Sequence[Any]], budget: Any, limits: Any, clock: Any, seed: Any
) -> None:
    wanted: list[tuple[str, Any, Any, str]] = [("task", task, Task, "lab.Task(train=…, val=…, seed=…, program=…, metric=…)")]
    wanted += [("budget", budget, Budget, "lab.Budget(metric_calls=…)"), ("limits", limits, Limits, "lab.Limits(…)")]
    wanted += [("clock", clock, (Wall, Scaled, Virtual), "lab.Wall(), lab.Scaled(factor) or lab.Virtual()")]
    wanted += [("seed", seed, int, "an integer")]
    for what, value, cls, expected in wanted:
        if not isinstance(value, cls) or isinstance(value, bool):
            raise SetupError(f"{what}: expected {expected}; got {type(value).__name__}")
    if isinstance(algorithm, type) or not hasattr(algorithm, "bind"):
        raise SetupError(f"algorithm: expected lab.GEPA(…); got {algorithm!r}")
    check_llms(models, clock)
    if budget.dollars is not None:
        check_prices(model for of_role in models.values() for model in of_role)


def check_llms(models: Mapping[str, Sequence[Any]], clock: Clock) -> None:
    """Raises `SetupError` for what is no model, or one that cannot run on this clock."""
    for role, model in ((role, model) for role, of_role in models.items() for model in of_role or (None,)):
        if isinstance(model, type) or not isinstance(model, LLM):
            expected = "lab.OpenAI(base_url, model=…), lab.Simulated(…) or an object with complete, check and describe"
            raise SetupError(f"llm for the role {role!r}: expected {expected}; got {model!r}")
        if not isinstance(clock, Wall) and not model.describe().get("in_process"):
            needs = 'lab.Simulated(…), or a model that describes itself as "in_process" (see lab.LLM)'
            raise SetupError(f"clock: {type(clock).__name__}() needs {needs}; {model!r} answers in real time")


def check_patience(sample_timeout_s: Any) -> None:
    """Raises `SetupError` when it is no number of seconds."""
    if not isinstance(sample_timeout_s, (int, float)) or not sample_timeout_s > 0:
        raise SetupError(f"sample_timeout_s: expected a number of seconds above 0; got {sample_timeout_s!r}")


def check_recordable(*facts: Any) -> None:
    """What the algorithm, its proposer and the models say of themselves goes into the log. Raises `SetupError` when it cannot."""
    try:
        json.dumps(facts, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SetupError(f"describe(): what a model or a proposer says of itself must be plain JSON; {error}") from error


def _forecast(algorithm: Plan, task: Task, budget: Budget, models: Mapping[str, Sequence[LLM]]) -> tuple[str, bool]:
    """How many proposals the budget allows, in words, and whether that is few. Warns when few, raises when none."""
    proposals, how = algorithm.forecast(task, _limits(budget, models))
    if proposals < 1:
        raise SetupError(f"budget: {budget} allows no proposal ({how}). Raise it, or use fewer validation examples.")
    if proposals == float("inf"):
        known = " and ".join(f"{limit:g} {name}" for name, limit in budget.limits().items())
        return f"how many proposals fit into {known} depends on the models' speed and price", False
    forecast = f"the budget allows about {proposals:,.0f} proposals: {how}"
    if proposals < FEW:
        warnings.warn(f"{forecast}. That is few: raise it, or use fewer validation examples.", stacklevel=3)
    return forecast, proposals < FEW


def _limits(budget: Budget, models: Mapping[str, Sequence[LLM]]) -> dict[str, float]:
    """The limits of a budget, its dollars also as the tokens they buy at most."""
    limits = budget.limits()
    prices = [price for of_role in models.values() for model in of_role for price in getattr(model, "price", None) or ()]
    if budget.dollars is not None and prices and min(prices) > 0:
        limits["tokens"] = min(limits.get("tokens", float("inf")), budget.dollars * 1e6 / min(prices))
    return limits


def check_models(models: Mapping[str, Sequence[LLM]], timeout_s: float = CHECK_S, *, grace_s: float = 5.0) -> None:
    """Ask every model, all at once, whether it is there; on a loop of its own (a notebook's loop is running already)."""
    unique = list({id(model): model for of_role in models.values() for model in of_role}.values())
    told: concurrent.futures.Future[None] = concurrent.futures.Future()

    async def ask() -> None:
        answers = await asyncio.gather(*(_ready(model, timeout_s) for model in unique), return_exceptions=True)
        for answer in answers:
            if answer is not None:
                raise answer

    def look() -> None:
        try:
            asyncio.run(ask())
        except BaseException as error:
            told.set_exception(error)
        else:
            told.set_result(None)

    threading.Thread(target=look, name="lab-check", daemon=True).start()
    done, _ = concurrent.futures.wait([told], timeout_s + grace_s)
    if not done:  # a check that blocks its thread
        raise SetupError(_silent(unique, timeout_s))
    told.result()


async def _ready(model: LLM, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s) as patience:
            await model.check()
    except Exception as error:
        if isinstance(error, SetupError):
            raise
        if patience.expired():
            raise SetupError(_silent([model], timeout_s)) from error
        raise SetupError(f"llm: {model!r} is not ready: {type(error).__name__}: {error}") from error
    finally:
        if getattr(model, "per_loop", False):
            await model.aclose()  # type: ignore[attr-defined]


def _silent(models: Sequence[LLM], timeout_s: float) -> str:
    who = ", ".join(map(repr, models))
    return (
        f"llm: {who}: check() did not answer within {timeout_s:g} s. Is the server starting, or the address wrong? Try again."
    )


def _path(name: str | None, task: str, folder: Path) -> Path:
    if name is not None:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.\- ]+", name):
            raise SetupError(f"name: expected letters, digits, spaces, '.', '-' and '_'; got {name!r}")
        if len(name.encode("utf-8", "surrogatepass")) > NAME_MAX:
            raise SetupError(
                f"name: expected at most {NAME_MAX} bytes, as it names a file; got {len(name)} characters: {name[:40]!r}…"
            )
        path = folder / f"{name}.sqlite"
        if path.exists():
            raise SetupError(
                f"name: a run {name!r} exists in {folder}: choose another, or look at it with lab.open({str(path)!r})"
            )
        return path
    short = re.sub(r"[^\w.-]+", "-", task).encode("utf-8", "ignore")[:NAME_MAX].decode("utf-8", "ignore")
    stem = short + datetime.now().strftime("-%Y%m%d-%H%M%S")
    candidates = (folder / f"{stem}{suffix}.sqlite" for suffix in ("", *(f"-{i}" for i in range(2, 10_000))))
    return next(path for path in candidates if not path.exists())


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("flashevolve-lab")
    except PackageNotFoundError:
        return "source"


@atexit.register
def _stop_all() -> None:
    """When the interpreter ends, running runs end with a proper last entry."""
    alive = [shell for shell in list(_running) if not shell.done.done()]
    for shell in alive:
        shell.stop("its process ended")
    concurrent.futures.wait([shell.done for shell in alive], timeout=3)
