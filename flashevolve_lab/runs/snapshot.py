"""A copy of a folded state, so that what a handle gave out stays as it was while the handle reads on.

Owns which parts of a state change in place. One rule a change must keep: everything `core.apply` changes in place is copied;
what is frozen is shared, so a copy costs about as much as walking through its dictionaries once.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from flashevolve_lab.core import Item, Job, Meters, Population, RunState


def copied(state: RunState) -> RunState:
    """The same state, sharing nothing that further entries would change."""
    made: RunState = _fields_copied(state)
    return made


def _copy(value: Any) -> Any:
    how = _COPIES.get(type(value))
    return value if how is None else how(value)


def _fields_copied(value: Any) -> Any:
    made = copy.copy(value)
    for field in fields(value):
        setattr(made, field.name, _copy(getattr(value, field.name)))
    return made


def _population_copied(value: Population) -> Population:
    made = copy.copy(value)
    vars(made).update({name: _copy(part) for name, part in vars(value).items()})
    return made


_COPIES: dict[type, Callable[[Any], Any]] = {
    dict: lambda value: {key: _copy(part) for key, part in value.items()},
    list: lambda value: [_copy(part) for part in value],
    deque: deque,
    set: set,
    Counter: Counter,
    Item: _fields_copied,
    Job: _fields_copied,
    Meters: _fields_copied,
    Population: _population_copied,
}
