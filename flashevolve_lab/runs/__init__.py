"""The Run handle, starting, opening and listing: what a notebook touches."""

from flashevolve_lab.runs.budget import Budget
from flashevolve_lab.runs.catalogue import list_runs, open_run
from flashevolve_lab.runs.comparison import Comparison, compare
from flashevolve_lab.runs.handle import Run
from flashevolve_lab.runs.launch import FLASHEVOLVE, start
from flashevolve_lab.runs.resuming import resume
from flashevolve_lab.runs.status import Best, Status

__all__ = ["FLASHEVOLVE", "Best", "Budget", "Comparison", "Run", "Status", "compare", "list_runs", "open_run", "resume", "start"]
