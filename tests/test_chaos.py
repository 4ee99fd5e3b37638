"""The short form of ``tests/benchmarks/chaos.py``: random runs on virtual time, audited entry by entry."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def chaos() -> ModuleType:
    path = Path(__file__).parent / "benchmarks" / "chaos.py"
    spec = importlib.util.spec_from_file_location("chaos", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(5_000, 5_030))
def test_a_random_run_breaks_no_invariant_and_exceeds_no_budget_at_any_moment(chaos: ModuleType, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some of these budgets are small on purpose
        state = chaos.random_run(seed)
    assert state.stop is not None and state.stop.kind in ("budget", "done", "failures")
