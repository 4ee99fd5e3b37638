"""The runtime model of batched GEPA, and its quantities in a run's log: how long a step and a rollout take, how many improve.

Owns `batched_runtime` (arXiv 2610.36774, runtime model) and `Runtime`, the view that measures its quantities. Owns no figure.
One rule a change must keep: what is measured comes from the log alone, and the model stays a function of numbers, so that a
prediction can be made before anything has run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from flashevolve_lab.core import Entry, Event
from flashevolve_lab.core import events as ev
from flashevolve_lab.errors import InvariantError, SetupError
from flashevolve_lab.views.facts import RunFacts, worded


@dataclass(frozen=True, slots=True)
class BatchedRuntime:
    """What the model says of steps of ``k`` proposals.

    Attributes:
        k: Proposals in a step (P parents × N minibatches).
        improving: q_k = 1 − (1 − a)^k, the chance that a step has anything to validate, in [0, 1].
        step_s: L_step, seconds from the step's first rollout to its last gate verdict.
        validation_s: L_val, seconds that validating the step's children takes.
        seconds: Expected seconds of a step: L_step + q_k · L_val.
        speedup: T(1)/T(k), the time to a budget one by one over the time to it in steps of k.
        proposals_per_minute: 60 · k / seconds.
        ceiling: The speed-up at which all workers always roll out, the floor B·T_e/W seen from T(1).
        floor_s: B·T_e/W, seconds that a budget of B metric calls takes at least; None when no budget was given.
    """

    k: int
    improving: float
    step_s: float
    validation_s: float
    seconds: float
    speedup: float
    proposals_per_minute: float
    ceiling: float
    floor_s: float | None = None


def batched_runtime(
    *,
    k: int,
    acceptance: float,
    validation: int,
    workers: int,
    step_s: float,
    rollout_s: float,
    spread: float = 0.0,
    minibatch: int = 3,
    metric_calls: float | None = None,
) -> BatchedRuntime:
    """How much faster GEPA is in steps of ``k`` proposals, by the runtime model of arXiv 2610.36774.

    T(1)/T(k) ≈ k · (L_step + a · L_val(1)) / (L_step + q_k · L_val(k)), with L_val(k) = T_e while k·V ≤ W, else (k·V/W) · T_e.

    What the model leaves out. It reckons with every one of the k children being validated once any improves (on average only
    a·k are), so it is pessimistic where k·V exceeds W. It lets a validation of V ≤ W examples take one mean rollout, though it
    takes as long as its slowest. L_step is the same for every k, though a step waits for its slowest proposal: ``spread``
    corrects that. Reflections take no worker, all k proposals improve as independently as one (siblings from an old front
    improve less), and nothing fails or is retried.

    Args:
        k: Proposals in a step, ≥ 1.
        acceptance: a, the share of proposals that improve on their minibatch and are validated, in (0, 1].
        validation: V, examples a validated child is scored on, ≥ 1.
        workers: W, rollouts that can run at once, ≥ 1.
        step_s: L_step at k = 1: seconds a proposal takes from its rollout to its gate verdict, > 0.
        rollout_s: T_e, mean seconds of the program on one example, > 0.
        spread: Standard deviation of the logarithm of a proposal's step seconds, in [0, 3]. Above 0 (not in the paper),
            L_step grows with k as the expected slowest of k log-normal draws of mean ``step_s``.
        minibatch: Examples of parent and of child in a step, ≥ 1; only for the ceiling: a proposal costs 2 · minibatch + a · V
            metric calls.
        metric_calls: B, a budget, for ``floor_s``.

    Raises:
        SetupError: a number outside its range.

    >>> round(batched_runtime(k=8, acceptance=0.25, validation=50, workers=64, step_s=3.0, rollout_s=0.25).speedup, 1)
    5.6
    """
    _checked(k=(k, 1), validation=(validation, 1), workers=(workers, 1), minibatch=(minibatch, 1))
    _above_zero(
        step_s=step_s, rollout_s=rollout_s, acceptance=acceptance, metric_calls=1 if metric_calls is None else metric_calls
    )
    if acceptance > 1 or not 0 <= spread <= 3:
        raise SetupError(
            f"batched_runtime: expected acceptance in (0, 1] and spread in [0, 3]; got {acceptance!r} and {spread!r}"
        )
    improving = 1 - (1 - acceptance) ** k
    one = step_s + acceptance * _validation_s(1, validation, workers, rollout_s)
    step, validating = step_s * slowest(k, spread), _validation_s(k, validation, workers, rollout_s)
    seconds = step + improving * validating
    cost = 2 * minibatch + acceptance * validation
    return BatchedRuntime(
        k=k,
        improving=improving,
        step_s=step,
        validation_s=validating,
        seconds=seconds,
        speedup=k * one / seconds,
        proposals_per_minute=60 * k / seconds,
        ceiling=one * workers / (cost * rollout_s),
        floor_s=None if metric_calls is None else metric_calls * rollout_s / workers,
    )


def _validation_s(k: int, validation: int, workers: int, rollout_s: float) -> float:
    return rollout_s * max(1.0, k * validation / workers)


def slowest(k: int, spread: float) -> float:
    """The expected largest of ``k`` log-normal draws, over the mean of one; ``spread``: standard deviation of the logarithm.

    >>> slowest(1, 0.6), round(slowest(16, 0.6), 2)
    (1.0, 2.55)
    """
    if k == 1 or spread == 0:
        return 1.0
    normal, h = NormalDist(), 0.02
    draws = (-9 + h * i for i in range(int((18 + spread) / h) + 1))  # the density of the largest is negligible outside
    total = sum(math.exp(spread * z) * k * normal.cdf(z) ** (k - 1) * normal.pdf(z) for z in draws)
    return total * h / math.exp(spread**2 / 2)


def _checked(**given: tuple[int, int]) -> None:
    for name, (value, least) in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SetupError(f"batched_runtime({name}=…): expected an integer of at least {least}; got {value!r}")


def _above_zero(**given: float) -> None:
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise SetupError(f"batched_runtime({name}=…): expected a number above 0; got {value!r}")


# --- what a run shows -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RuntimeSnapshot:
    """The quantities of the runtime model as a run shows them, after entry ``seq``; 0 where nothing has been seen yet.

    Attributes:
        schedule: In words. ``k``: proposals it has at once (p × n, or a pipeline's depth; 0 for a schedule that does not say).
        batched: It settles its k proposals before it starts others (`Sequential`, `Batched`).
        steady: Neither the schedule nor its depth ever changed.
        proposals, validated: Proposals with a gate verdict, and those with a validation sample (the seed left out).
        seconds, metric_calls: Since the seed's commit, to the end of the log.
        validation: Examples of the validation set. ``minibatch``: of a rollout.
        workers: Calls in flight that the task's servers are given.
        rollout_s: Mean seconds of a program on one example: its model calls, or, where it makes none, from its job's start.
        step_s: Mean seconds of a proposal's jobs up to its first gate verdict, without waiting between them.
        spread: Standard deviation of the logarithm of those seconds.
    """

    facts: RunFacts = RunFacts()
    seq: int = 0
    schedule: str = ""
    k: int = 0
    batched: bool = False
    steady: bool = True
    proposals: int = 0
    validated: int = 0
    seconds: float = 0.0
    metric_calls: int = 0
    validation: int = 0
    minibatch: int = 0
    workers: int = 0
    rollout_s: float = 0.0
    step_s: float = 0.0
    spread: float = 0.0

    @property
    def acceptance(self) -> float:
        """a: the share of proposals that improved on their minibatch and were validated, in [0, 1]."""
        return min(1.0, self.validated / self.proposals) if self.proposals else 0.0

    @property
    def measurable(self) -> bool:
        """Whether every quantity of the model has been seen."""
        return min(self.acceptance, self.rollout_s, self.step_s, self.validation, self.workers, self.metric_calls) > 0


class Runtime:
    """A live view: feed it the log in any pieces, ask for the snapshot at any time."""

    def __init__(self) -> None:
        self._seq = 0
        self._at = 0.0
        self._facts = RunFacts()
        self._schedule: Mapping[str, Any] = {}
        self._steady = True
        self._settings: dict[str, Any] = {}
        self._servers = 1
        self._from: float | None = None  # the seed's commit
        self._sizes: Counter[str] = Counter()  # metric calls, validation examples, minibatch
        self._proposals: set[str] = set()
        self._jobs: dict[str, tuple[str, float]] = {}  # running job → its item and start
        self._worked: dict[str, float] = {}  # proposal before its verdict → seconds of its ended jobs
        self._steps: list[float] = []
        self._validated: set[str] = set()
        self._calls: dict[str, float] = {}  # open call of a program → its start
        self._in_calls = self._in_jobs = 0.0
        self._samples = 0

    def __repr__(self) -> str:
        return f"<Runtime of {len(self._steps)} proposals up to entry {self._seq}>"

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take in further entries (those seen before are skipped).

        Raises:
            InvariantError: entries are missing in between.
        """
        for entry in entries:
            if entry.seq <= self._seq:
                continue
            if entry.seq != self._seq + 1:
                raise InvariantError(f"entry {entry.seq} came after {self._seq}: feed a view every entry in order")
            self._seq, self._at = entry.seq, max(self._at, entry.at)
            self._set(entry.event)
            self._time(entry.event)

    def snapshot(self) -> RuntimeSnapshot:
        """The quantities so far."""
        spent = self._in_calls or self._in_jobs
        return RuntimeSnapshot(
            facts=self._facts,
            seq=self._seq,
            schedule=worded(self._schedule) if self._schedule else "",
            k=at_once(self._schedule),
            batched=self._schedule.get("name") in ("Sequential", "Batched"),
            steady=self._steady,
            proposals=len(self._steps),
            validated=len(self._validated),
            seconds=0.0 if self._from is None else self._at - self._from,
            metric_calls=self._sizes["metric calls"],
            validation=self._sizes["validation"],
            minibatch=self._sizes["minibatch"],
            workers=int(self._settings.get("concurrency") or 0) * self._servers,
            rollout_s=spent / self._samples if self._samples else 0.0,
            step_s=sum(self._steps) / len(self._steps) if self._steps else 0.0,
            spread=_spread(self._steps),
        )

    def _set(self, event: Event) -> None:
        """What the run was given."""
        match event:
            case ev.RunStarted():
                self._facts = RunFacts.of(event)
                self._settings = dict(event.settings)
                self._schedule = dict(event.settings.get("schedule") or {})
                self._servers = max(1, len(event.llm.get("task") or ())) if isinstance(event.llm, Mapping) else 1
                self._sizes["minibatch"] = int(event.algorithm.get("minibatch") or 0)
            case ev.RunResumed():
                self._facts = self._facts.after(event)
            case ev.SettingChanged(knob, _, new):
                self._settings[knob] = new
                if knob == "schedule":
                    self._schedule, self._steady = dict(new), False
            case ev.DepthChanged():
                self._steady = False
            case ev.ItemMade(item, "proposal"):
                self._proposals.add(item)
                self._worked[item] = 0.0
            case ev.Committed():
                self._sizes["validation"] = event.examples
                self._from = self._at if self._from is None else self._from
            case _:
                pass

    def _time(self, event: Event) -> None:
        """What took how long."""
        match event:
            case ev.JobStarted(job, item=item):
                self._jobs[job] = item, self._at
            case ev.JobFinished(job) | ev.JobFailed(job) | ev.JobAbandoned(job) | ev.JobLost(job):
                self._end_job(job)
            case ev.Released(job) if job in self._jobs:  # its tail is no part of the proposal's step
                item, start = self._jobs[job]
                if item in self._worked:
                    self._worked[item] += self._at - start
                self._jobs[job] = "", start
            case ev.Gated(item, first=True) if item in self._worked:
                running = sum(self._at - start for other, start in self._jobs.values() if other == item)
                self._steps.append(self._worked.pop(item) + running)
            case ev.CallStarted(call, role="task"):
                self._calls[call] = self._at
            case ev.CallFinished(call) if call in self._calls:
                self._in_calls += self._at - self._calls.pop(call)
            case ev.SampleScored(job, split=split) | ev.SampleFailed(job, split=split):
                self._sample(job, split)
            case _:
                pass

    def _end_job(self, job: str) -> None:
        item, start = self._jobs.pop(job, ("", self._at))
        if item in self._worked:
            self._worked[item] += self._at - start

    def _sample(self, job: str, split: str) -> None:
        item, start = self._jobs.get(job, ("", self._at))
        self._samples += 1
        self._in_jobs += self._at - start
        self._sizes["metric calls"] += self._from is not None
        if split == "val" and item in self._proposals:
            self._validated.add(item)


def at_once(schedule: Mapping[str, Any]) -> int:
    """Proposals a recorded schedule has at once; 0 when it does not say.

    >>> at_once({"name": "Batched", "p": 2, "n": 4}), at_once({"name": "Pipelined", "depth": 16})
    (8, 16)
    """
    match schedule.get("name"):
        case "Sequential":
            return 1
        case "Batched":
            return int(schedule.get("p") or 0) * int(schedule.get("n") or 0)
        case _:
            depth = schedule.get("depth")
            return depth if isinstance(depth, int) else 0


def _spread(seconds: list[float]) -> float:
    logs = [math.log(value) for value in seconds if value > 0]
    if len(logs) < 2:
        return 0.0
    mean = sum(logs) / len(logs)
    return math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
