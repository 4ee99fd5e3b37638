"""The proposal seam: how a new text comes out of what the rollouts showed.

Owns `Brief` (what a proposer reads), `Draft` (what it returns), the default `Reflect`, and the extraction of a text from a
reply. One rule a change must keep: a text that was truncated, left unclosed, empty, unchanged or seen before is refused with
the raw reply kept; it never becomes an artifact.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from flashevolve_lab.tasks import Asker


@dataclass(frozen=True, slots=True)
class Record:
    """One rollout as the reflection reads it: ``input`` and ``output`` as text, ``score``, ``feedback`` of the metric.

    ``example``: its place in the train set (-1: none). A ``score`` that is NaN is not known, and not told.
    """

    input: str
    output: str
    score: float
    feedback: str
    example: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A text for this component that was proposed before and did not pass its gate.

    ``difference``: its lines against the text it was made from ("+ " added, "- " taken out), shortened. ``score``, ``bar``: its sum
    on the examples of its gate and the sum it had to exceed (``bound``: the score is the most it could have reached).
    """

    difference: str
    score: float
    bar: float
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Brief:
    """What a proposer gets: the whole current artifact, the component to rewrite, and the evidence.

    Attributes:
        components: Component name → current text.
        component: The name of the one to rewrite.
        records: The parent's rollouts on the minibatch.
        draw: A random stream of this proposal's own (keyed, so the order of completion changes nothing).
        rejected: What was tried on this component of this parent, and of what it was made from, the newest first; bounded.
    """

    components: Mapping[str, str]
    component: str
    records: tuple[Record, ...]
    draw: Random
    rejected: tuple[Rejected, ...] = ()

    @property
    def current(self) -> str:
        """The text to be rewritten."""
        return self.components[self.component]


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposed text for ``brief.component``, the raw reply it was taken from, and a note for the log ("" for none)."""

    text: str
    raw: str
    note: str = ""


class Proposer(Protocol):
    """Rewrites one component. Calls made through ``llm`` go to the reflection model, limited, retried and charged."""

    def propose(self, brief: Brief, llm: Asker) -> Awaitable[Draft] | Draft:
        """The new text; usually ``async``. Raises `BadReply` (with the raw text) when the model gave none that can be used.

        One that waits for something else than ``llm`` may be a plain function: it runs in a thread, calls ``llm.ask(…)`` there, and
        returns a `Draft`, or an awaitable of one that is then awaited on the engine's loop.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """JSON-able facts for the log; ``"label"`` is shown on the screen when present."""
        ...
