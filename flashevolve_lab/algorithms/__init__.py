"""Declared graphs, prompts, and the work of each stage."""

from flashevolve_lab.algorithms.bench import Bench, Plan, Trouble, Worker
from flashevolve_lab.algorithms.gepa import GEPA
from flashevolve_lab.algorithms.proposing import Brief, Draft, Proposer, Record
from flashevolve_lab.algorithms.reflecting import Reflect, extract

__all__ = ["GEPA", "Bench", "Brief", "Draft", "Plan", "Proposer", "Record", "Reflect", "Trouble", "Worker", "extract"]
