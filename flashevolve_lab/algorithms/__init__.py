"""Declared graphs, prompts, and the work of each stage."""

from flashevolve_lab.algorithms.adapter_proposing import AdapterProposer
from flashevolve_lab.algorithms.bench import Bench, Plan, Trouble, Worker
from flashevolve_lab.algorithms.combining import MapReduce
from flashevolve_lab.algorithms.gepa import GEPA
from flashevolve_lab.algorithms.merging import Merge
from flashevolve_lab.algorithms.proposing import Brief, Draft, Proposer, Record, Rejected
from flashevolve_lab.algorithms.reflecting import Reflect, extract

__all__ = [
    "GEPA", "AdapterProposer", "Bench", "Brief", "Draft", "MapReduce", "Merge", "Plan", "Proposer", "Record", "Reflect", "Rejected", "Trouble", "Worker", "extract",
]  # fmt: skip
