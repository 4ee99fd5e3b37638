"""The truth about a run, pure: values, events, state, and the two questions `decide` and `plan`."""

from flashevolve_lab.core import events, inputs
from flashevolve_lab.core.artifacts import (
    DIMENSIONS,
    NOTHING,
    Artifact,
    Item,
    Job,
    NewItem,
    Pace,
    Sample,
    Situation,
    Spend,
    StaleItem,
    Starts,
    Verdict,
    content_hash,
)
from flashevolve_lab.core.draws import draw
from flashevolve_lab.core.events import SCHEMA, Entry, Event, decode, encode
from flashevolve_lab.core.graph import Algorithm, Commit, Graph, Route, Rules, Schedule, Stage, Staleness
from flashevolve_lab.core.population import Member, Population
from flashevolve_lab.core.state import RunState, apply, check
from flashevolve_lab.core.step import REFUSALS, decide, plan

__all__ = [
    "DIMENSIONS", "NOTHING", "REFUSALS", "SCHEMA", "Algorithm", "Artifact", "Commit", "Entry", "Event", "Graph", "Item", "Job",
    "Member", "NewItem", "Pace", "Population", "Route", "Rules", "RunState", "Sample", "Schedule", "Situation", "Spend",
    "Stage", "StaleItem", "Staleness", "Starts", "Verdict", "apply", "check", "content_hash", "decide", "decode", "draw",
    "encode", "events", "inputs", "plan",
]  # fmt: skip
