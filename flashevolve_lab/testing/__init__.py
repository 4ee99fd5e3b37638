"""Shipped test tools: contract suites for what you add, and small worlds to try it in."""

from flashevolve_lab.testing.contracts import (
    acceptance_contract,
    log_contract,
    schedule_contract,
    staleness_contract,
    workers_contract,
)
from flashevolve_lab.testing.evolutions import algorithm_contract
from flashevolve_lab.testing.models import llm_contract
from flashevolve_lab.testing.worlds import PureRun, Toy

__all__ = [
    "PureRun", "Toy", "acceptance_contract", "algorithm_contract", "llm_contract", "log_contract", "schedule_contract", "staleness_contract", "workers_contract",
]  # fmt: skip
