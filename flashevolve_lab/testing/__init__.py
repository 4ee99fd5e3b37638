"""Shipped test tools: contract suites for what you add, and small worlds to try it in."""

from flashevolve_lab.testing.contracts import log_contract, schedule_contract, staleness_contract
from flashevolve_lab.testing.worlds import PureRun, Toy

__all__ = ["PureRun", "Toy", "log_contract", "schedule_contract", "staleness_contract"]
