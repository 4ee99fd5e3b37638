"""What a picture of a run must say about it: its name, its clock, whether a model was simulated; and values in words.

Owns `RunFacts` and `worded`. Owns no reading of files and no layout. One rule a change must keep: whatever makes a
run less than the real thing (a simulated model, a clock that is not the wall's) is a fact here, so that no figure can
forget to say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flashevolve_lab.core.events import RunResumed, RunStarted


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about a run that do not change while it goes on.

    Attributes:
        run: Its name; ``created``: ISO time on the wall, UTC. Empty before the first entry.
        clock: ``"wall"``, ``"scaled"`` or ``"virtual"``; only the first gives seconds of real time.
        simulated: At least one of the models it has used, before or after a resume, is simulated.
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
    def of(cls, started: RunStarted | None, llms: Iterable[Mapping[str, Any]] = ()) -> RunFacts:
        """The facts in a run's first entry, and in the models of its resumes (``RunState.llms``)."""
        if started is None:
            return cls()
        return cls(
            run=started.run,
            created=started.created,
            clock=started.clock,
            simulated=_simulated([started.llm, *llms]),
            algorithm=str(started.algorithm.get("name", "")),
            task=str(started.task.get("name", "")),
            proposer=_label(started.algorithm.get("proposer")),
            lab=started.lab,
        )

    def after(self, resumed: RunResumed) -> RunFacts:
        """The facts once the run was taken up again: a simulated model, once used, stays said."""
        return replace(self, simulated=self.simulated or _simulated(resumed.llm))


def _label(proposer: Any) -> str:
    return str(proposer.get("label") or "") if isinstance(proposer, Mapping) else ""


def _simulated(models: Any) -> bool:
    """Whether any model in recorded descriptions, however nested, is a simulated one."""
    if isinstance(models, Mapping):
        return models.get("simulated") is True or any(_simulated(part) for part in models.values())
    return isinstance(models, list | tuple) and any(_simulated(part) for part in models)


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
