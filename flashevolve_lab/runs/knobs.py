"""Settings of a run: what each knob that can change mid-run accepts, and how it and the limits of calls are written into the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import isfinite
from typing import Any, Final

from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm import Limits
from flashevolve_lab.policies import Policies
from flashevolve_lab.runs.budget import Budget


class Unchanged(Enum):
    """What a knob that is not given stands at."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.name


UNCHANGED: Final = Unchanged.UNCHANGED
SAMPLE_TIMEOUT_S = 600.0


def given(**knobs: Any) -> dict[str, Any]:
    """The knobs that were given."""
    return {knob: value for knob, value in knobs.items() if value is not UNCHANGED}


def limits_recorded(limits: Limits, sample_timeout_s: float) -> dict[str, Any]:
    """The setting "limits": everything about calls but the concurrency, which is a knob of its own."""
    values = {"deadline_s": limits.deadline_s, "retries": limits.retries, "backoff_s": limits.backoff_s}
    seconds = {**values, "sample_timeout_s": sample_timeout_s}
    finite = {name: value if isfinite(value) else str(value) for name, value in seconds.items()}  # JSON knows no infinity
    return {**finite, "hedge": limits.hedge}


def limits_in_force(settings: Mapping[str, Any]) -> tuple[Limits, float]:
    """The limits, and the seconds for a sample, that recorded settings say; what an old log does not say is the default."""
    known = dict(settings.get("limits") or {})
    sample_timeout_s = float(known.pop("sample_timeout_s", SAMPLE_TIMEOUT_S))
    numbers = {name: float(value) if isinstance(value, str) else value for name, value in known.items()}
    concurrency = settings.get("concurrency", Limits().concurrency)
    return Limits(**{**numbers, "concurrency": concurrency}), sample_timeout_s


def recorded(values: Mapping[str, Any], policies: Policies, stages: Sequence[str]) -> dict[str, Any]:
    """Knob → JSON value, with live policies registered. Raises `SetupError` for what no knob accepts."""
    if unknown := set(values) - set(KNOBS):
        raise SetupError(f"there is no knob {', '.join(sorted(unknown))}; the knobs are {', '.join(KNOBS)}")
    return {knob: KNOBS[knob](value, policies, stages) for knob, value in values.items()}


def _schedule(value: Any, policies: Policies, stages: Sequence[str]) -> dict[str, Any]:
    if isinstance(value, type) or not (hasattr(value, "admits") and hasattr(value, "depth")):
        raise SetupError(f"schedule: expected Sequential(), Batched(p, n), Pipelined(depth) or one of your own; got {value!r}")
    if value.depth == "auto":
        _finds_depth(value)
    else:
        _whole("schedule.depth", value.depth)
    return policies.live(value)


def _finds_depth(value: Any) -> None:
    if not callable(getattr(value, "review", None)):
        raise SetupError(f'schedule: with the depth "auto" it needs least, most and review(load); got {value!r}')
    least, most = (_whole(f"schedule.{name}", getattr(value, name, None)) for name in ("least", "most"))
    if least > most:
        raise SetupError(f"schedule: expected least ≤ most; got least={least}, most={most}")


def _staleness(value: Any, policies: Policies, stages: Sequence[str]) -> dict[str, Any]:
    if isinstance(value, type) or not callable(getattr(value, "judge", None)):
        raise SetupError(f"staleness: expected Full(), Guarded(max_gap) or an object with judge(item); got {value!r}")
    return policies.live(value)


def _acceptance(value: Any, policies: Policies, stages: Sequence[str]) -> dict[str, Any]:
    if isinstance(value, type) or not callable(getattr(value, "judge", None)):
        raise SetupError(f"acceptance: expected Strict(), Tolerant(), Repeated() or an object with judge(gate); got {value!r}")
    return policies.live(value)


def _completion(value: Any, policies: Policies, stages: Sequence[str]) -> dict[str, Any]:
    if isinstance(value, type) or not callable(getattr(value, "judge", None)):
        raise SetupError(f"completion: expected Complete(), Speculative() or an object with judge(partial); got {value!r}")
    return policies.live(value)


def _workers(value: Any, policies: Policies, stages: Sequence[str]) -> dict[str, Any]:
    if isinstance(value, type) or not callable(getattr(value, "judge", None)):
        known = "Fixed(), RateBalanced(), ServerAware()"
        raise SetupError(f"workers: expected {known} or an object with every_s and judge(load); got {value!r}")
    every_s = getattr(value, "every_s", 1.0)
    if every_s is not None and not (isinstance(every_s, (int, float)) and every_s > 0):
        raise SetupError(f"workers.every_s: expected a number of seconds above 0, or None for no review; got {every_s!r}")
    return policies.live(value)


def _slots(value: Any, policies: Policies, stages: Sequence[str]) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise SetupError(f"slots: expected a mapping of stage → worker slots, e.g. {{'validate': 4}}; got {value!r}")
    for stage, count in value.items():
        if stage not in stages:
            raise SetupError(f"slots: there is no stage {stage!r}; the stages are {', '.join(stages)}")
        _whole(f"slots[{stage!r}]", count)
    return dict(value)


def _concurrency(value: Any, policies: Policies, stages: Sequence[str]) -> int:
    return _whole("concurrency", value)


def _max_failures(value: Any, policies: Policies, stages: Sequence[str]) -> int:
    return _whole("max_failures", value)


def _budget(value: Any, policies: Policies, stages: Sequence[str]) -> dict[str, float]:
    if not isinstance(value, Budget):
        raise SetupError(f"budget: expected lab.Budget(metric_calls=…, …); got {value!r}")
    return value.limits()


def _whole(what: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SetupError(f"{what}: expected an integer of at least 1; got {value!r}")
    return value


POLICY_KNOBS = ("schedule", "staleness", "acceptance", "completion", "workers")
KNOBS: Mapping[str, Callable[[Any, Policies, Sequence[str]], Any]] = {
    "schedule": _schedule,
    "staleness": _staleness,
    "acceptance": _acceptance,
    "completion": _completion,
    "workers": _workers,
    "slots": _slots,
    "concurrency": _concurrency,
    "max_failures": _max_failures,
    "budget": _budget,
}
