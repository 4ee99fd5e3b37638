"""The contract of an algorithm holds for ours, and catches one that does not repeat itself."""

from __future__ import annotations

import doctest
import itertools
from pathlib import Path
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.testing import algorithm_contract, evolutions

LANDSCAPE = lab.IndependentRules(n_rules=8, p_improve=0.6)
TASK = lab.simulated_task(LANDSCAPE, n_train=16, n_val=8)


@pytest.mark.parametrize("algorithm", [lab.GEPA(minibatch=2), lab.GEPA(cache=False)], ids=["small minibatch", "no cache"])
@pytest.mark.parametrize("schedule", [lab.Sequential(), lab.Pipelined(8)], ids=repr)
def test_gepa_keeps_the_contract_of_an_algorithm(algorithm: lab.GEPA, schedule: Any, tmp_path: Path) -> None:
    algorithm_contract(algorithm, TASK, lab.Simulated(LANDSCAPE), schedule=schedule, folder=tmp_path)


def test_an_algorithm_that_is_another_each_time_breaks_the_contract(tmp_path: Path) -> None:
    count = itertools.count()

    class Whim:
        """Proposes what it has never proposed."""

        async def propose(self, brief: lab.Brief, llm: Any) -> lab.Draft:
            return lab.Draft(f"text {next(count)} RULE-1.", "")

        def describe(self) -> dict[str, Any]:
            return {"kind": "whim"}

    algorithm = lab.GEPA(proposer=Whim())
    with pytest.raises(AssertionError, match="the same seed gives the same log"):
        algorithm_contract(algorithm, TASK, lab.Simulated(LANDSCAPE), folder=tmp_path)


def test_the_example_in_the_contracts_docstring_works() -> None:
    assert doctest.testmod(evolutions, raise_on_error=True).attempted == 3
