"""What a picture of a run must say about it: its name, its clock, whether a model was simulated; and values in words.

Owns `RunFacts` and `worded`. Owns no reading of files and no layout. One rule a change must keep: whatever makes a
run less than the real thing (a simulated model, a clock that is not the wall's) is a fact here, so that no figure can
forget to say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flashevolve_lab.core.events import RunStarted


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about a run that do not change.

    Attributes:
        run: Its name; ``created``: ISO time on the wall, UTC. Empty before the first entry.
        clock: ``"wall"``, ``"scaled"`` or ``"virtual"``; only the first gives seconds of real time.
        simulated: At least one of its models is simulated.
        algorithm, task: Their names ("" when the log has none).
        proposer: What a proposer says about itself, for the screen ("" when it says nothing).
        lab: Version of the package that ran it.
    """

    run: str = ""
    created: str = ""
    clock: str = "wall"
    simulated: bool = False
    algorithm: str = ""
    task: str = ""
    proposer: str = ""
    lab: str = ""

    @classmethod
    def of(cls, started: RunStarted | None) -> RunFacts:
        """The facts in a run's first entry."""
        if started is None:
            return cls()
        return cls(
            run=started.run,
            created=started.created,
            clock=started.clock,
            simulated=_simulated(started.llm),
            algorithm=str(started.algorithm.get("name", "")),
            task=str(started.task.get("name", "")),
            proposer=_label(started.algorithm.get("proposer")),
            lab=started.lab,
        )


def _label(proposer: Any) -> str:
    return str(proposer.get("label") or "") if isinstance(proposer, Mapping) else ""


def _simulated(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("simulated") is True or any(_simulated(part) for part in value.values())
    return isinstance(value, list | tuple) and any(_simulated(part) for part in value)


def worded(value: Any) -> str:
    """A recorded setting in words: a policy's record as the call that makes it, others as plainly as can be.

    >>> worded({"name": "Batched", "p": 2, "n": 4})
    'Batched(p=2, n=4)'
    >>> worded({"gate": 4, "validate": 8})
    'gate=4, validate=8'
    """
    if isinstance(value, Mapping):
        parts = _parts((key, part) for key, part in value.items() if key != "name")
        return f"{value['name']}({parts})" if "name" in value else parts or "none"
    return "none" if value is None else str(value)


def _parts(pairs: Iterable[tuple[Any, Any]]) -> str:
    return ", ".join(f"{key}={part!r}" if isinstance(part, str) else f"{key}={worded(part)}" for key, part in pairs)
