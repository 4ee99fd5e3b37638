"""Rejected proposals, remembered: what a reflection is told of texts that were tried before and did not pass their gate.

Owns which of them are near enough to tell, and how they are written: as differences, quoted. Owns no memory of its own (the state
folds it from the log). One rule a change must keep: what is told is bounded in number and in size, and is never fenced, so that no
reader takes a rejected text for the current one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from flashevolve_lab.algorithms.proposing import Rejected
from flashevolve_lab.core import Rejection, RunState

NEAR = 2  # generations: what was rejected on the parent's own parents is told too
SHOWN = 600  # characters of one difference
HEAD = (
    "\n\nThese changes were tried before, on this instruction or on the one it was made from, and were rejected: they did not score "
    'better ("+": a line that was added, "-": one that was taken out). Do not propose them again:\n\n'
)


def remembered(state: RunState, parent: str, component: str, most: int) -> tuple[Rejected, ...]:
    """Up to ``most`` rejected texts for this component: those of the parent first, the newest first."""
    near = [(rejection, of) for of in _lineage(state, parent) for rejection in _newest(state, of, component)]
    return tuple(_told(state, rejection, of, component) for rejection, of in near[:most])


def told(rejected: Sequence[Rejected], room: int | None) -> str:
    """As the reflection reads them, in about ``room`` characters at most (None: no limit); "" when there are none, or no room."""
    parts: list[str] = []
    used = len(HEAD)
    for one in rejected:
        scored = f"could have scored {one.score:g} at most" if one.bound else f"scored {one.score:g}"
        lines = [f"{scored}, and more than {one.bar:g} was needed:", *one.difference.split("\n")]
        part = "\n".join(f"> {line}" for line in lines)
        used += len(part) + 2
        if room is not None and used > room:
            break
        parts.append(part)
    return HEAD + "\n\n".join(parts) if parts else ""


def difference(old: str, new: str) -> str:
    """The lines that differ, "- " taken out and "+ " added; shortened to `SHOWN` characters, without runs of backticks."""
    before, after = old.splitlines(), new.splitlines()
    lines: list[str] = []
    for what, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if what != "equal":
            lines += [f"- {line}" for line in before[i:j]] + [f"+ {line}" for line in after[k:m]]
    text = "\n".join(lines).replace("```", "'''")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} […{len(text) - SHOWN:,} characters more]"


def _lineage(state: RunState, parent: str) -> Iterator[str]:
    generation = [parent]
    for _ in range(NEAR):
        yield from generation
        generation = [id for of in generation for id in state.artifacts[of].parents]


def _newest(state: RunState, parent: str, component: str) -> list[Rejection]:
    return list(reversed(state.rejections.get((parent, component), ())))


def _told(state: RunState, rejection: Rejection, parent: str, component: str) -> Rejected:
    old, new = (state.artifacts[id].components[component] for id in (parent, rejection.artifact))
    return Rejected(difference(old, new), rejection.child_sum, rejection.parent_sum, rejection.bound)
