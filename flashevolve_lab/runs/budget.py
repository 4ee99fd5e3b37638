"""What a run may spend: reserved before spending, never exceeded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm import LLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a run; at least one. What is None is unlimited.

    Args:
        metric_calls: One program run and scored on one example each (GEPA's own unit).
        llm_calls: Attempts sent to any model, retries included.
        tokens: Prompt and completion tokens, of all models.
        dollars: By the price given with the model.
        seconds: Lab seconds since the start: a deadline.
        proposals: Distinct new children that got a first gate verdict.
    """

    metric_calls: int | None = None
    llm_calls: int | None = None
    tokens: int | None = None
    dollars: float | None = None
    seconds: float | None = None
    proposals: int | None = None

    def __post_init__(self) -> None:
        limits = {f.name: getattr(self, f.name) for f in fields(self)}
        if all(value is None for value in limits.values()):
            raise SetupError(f"Budget(): expected at least one limit of {', '.join(limits)}; got none")
        for name, value in limits.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (number and math.isfinite(value) and value > 0):
                raise SetupError(f"Budget({name}=…): expected a number above 0; got {value!r}")

    def limits(self) -> dict[str, float]:
        """The limits that were given."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


def budget_from(given: Any) -> Budget:
    """A budget as it is, or made from a dictionary of its limits.

    Raises:
        SetupError: it is neither, or there is no such limit.
    """
    if isinstance(given, Budget):
        return given
    if not isinstance(given, Mapping):
        raise SetupError(f"budget: expected lab.Budget(metric_calls=…); got {type(given).__name__}")
    names = [f.name for f in fields(Budget)]
    if unknown := [str(name) for name in given if name not in names]:
        raise SetupError(f"budget: there is no limit of {', '.join(unknown)}; the limits are {', '.join(names)}")
    return Budget(**given)


def check_prices(models: Iterable[LLM]) -> None:
    """Raises `SetupError` when dollars cannot be counted."""
    for model in models:
        if getattr(model, "price", None) is None:
            raise SetupError(
                f"budget: dollars need a price: lab.OpenAI(…, price=(input, output) per million tokens) for {model!r}"
            )
