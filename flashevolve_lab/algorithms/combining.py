"""Map–reduce reflection for large minibatches (ComBEE, arXiv 2604.04247), as a join with late arrivals.

The records are duplicated, shuffled and split into groups; each group is reflected on by a call of its own, all at once; one call
unites what they wrote. The window closes on a count, a share or a deadline. What comes later is not waited for and not lost: it
is taken in by the next window on the same component. Owns the prompts' order and the window. Owns no memory: what is late is
folded from the log (`RunState.late`). One rule a change must keep: every reflection that arrived is read by exactly one window, and
none is paid for twice, whatever is killed in between.

Not kept are: reflections still under way when the run stops or its process dies (charged, as every call then), and those of a window
whose own text was refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isqrt
from random import Random
from typing import Any, Protocol, runtime_checkable

from flashevolve_lab.algorithms.bench import Bench
from flashevolve_lab.algorithms.proposing import Brief, Draft, Record
from flashevolve_lab.algorithms.reflecting import Reflect, extract, fenced
from flashevolve_lab.errors import BadReply, ModelError, SetupError
from flashevolve_lab.llm import Reply
from flashevolve_lab.tasks import Asker

PROMPT = """\
Several people improved the same instruction of an assistant (component "{component}"), each from other evidence. This is the
instruction as it is now:

{current}

These are their versions (some may have been written for an earlier instruction):

{versions}

Unite them: keep what already works, take over every fact, rule and strategy that carries over to further inputs, say each only
once, and settle what contradicts itself. Write the complete new instruction into exactly one fenced block, opened and closed by a
line of three backticks (more, if the text contains such lines).
"""


@dataclass(frozen=True, slots=True)
class Window:
    """What a join returns: the draft; the names of the calls that missed it; and what waits for those (None: nothing)."""

    draft: Draft
    open: tuple[str, ...] = ()
    tail: asyncio.Future[None] | None = None


@runtime_checkable
class Joiner(Protocol):
    """A proposer that needs more than one call at once: it gets the bench of its job."""

    async def combine(self, brief: Brief, bench: Bench) -> Window:
        """The new text. Raises `BadReply` when there is none that can be used."""
        ...


@dataclass(frozen=True, slots=True)
class MapReduce:
    """Reflects on groups of a large minibatch (20 to 40 examples) side by side, and unites what comes out.

    The uniting call goes to the patch role (``patch_llm``, by default the model that reflects).

    Args:
        copies: How many groups read each record, ≥ 1.
        groups: Number of groups; None: ⌊√n⌋ of n records. Never more than there are records.
        close: Share of the groups, in (0, 1], whose reflections close the window.
        count: Number of reflections that close it, if that is fewer.
        deadline_s: Lab seconds after which it closes with what there is (one reflection at least), or None.
        reflect: How one group is reflected on.
        prompt: Of the uniting call; a template with ``{component}``, ``{current}`` and ``{versions}``.
        max_tokens: Upper bound of the uniting reply, in tokens.
    """

    copies: int = 2
    groups: int | None = None
    close: float = 1.0
    count: int | None = None
    deadline_s: float | None = None
    reflect: Reflect = field(default_factory=Reflect)
    prompt: str = PROMPT
    max_tokens: int = 4096

    def __post_init__(self) -> None:
        for name in ("copies", "groups", "count", "max_tokens"):
            value = getattr(self, name)
            optional = value is None and name in ("groups", "count")
            if not optional and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise SetupError(f"MapReduce({name}=…): expected an integer of at least 1; got {value!r}")
        if not isinstance(self.close, (int, float)) or not 0 < self.close <= 1:
            raise SetupError(f"MapReduce(close=…): expected a share in (0, 1]; got {self.close!r}")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise SetupError(f"MapReduce(deadline_s=…): expected seconds above 0, or None; got {self.deadline_s!r}")
        if lacking := [name for name in ("{current}", "{versions}") if name not in self.prompt]:
            raise SetupError(f"MapReduce(prompt=…): the template lacks {' and '.join(lacking)}")

    def describe(self) -> dict[str, Any]:
        """Facts for the log."""
        window = {"close": self.close, "count": self.count, "deadline_s": self.deadline_s}
        facts = {"name": "MapReduce", "copies": self.copies, "groups": self.groups, **window, "max_tokens": self.max_tokens}
        return {**facts, "reflect": self.reflect.describe()}

    def calls(self, records: int) -> int:
        """Model calls of one proposal: a reflection for each group, and one that unites them."""
        return self._groups(records) + 1

    def _groups(self, records: int) -> int:
        return min(records, self.groups or max(1, isqrt(records)))

    async def combine(self, brief: Brief, bench: Bench) -> Window:
        """Map, wait for the window to close, reduce."""
        parts = split(brief.records, self.copies, self._groups(len(brief.records)), brief.draw)
        late = await bench.late(2 * len(parts))
        maps = {
            f"map{i}": asyncio.ensure_future(self.reflect.propose(replace(brief, records=part), bench.asker("reflection", f"map{i}")))
            for i, part in enumerate(parts)
        }
        try:
            await self._closed(list(maps.values()))
            on_time = {name: task for name, task in maps.items() if task.done()}
            draft = await self._reduced(brief, bench.asker("patch", "reduce"), _usable(on_time), late, len(parts))
        except BaseException:
            for task in maps.values():
                task.cancel()
            raise
        missed = {name: task for name, task in maps.items() if name not in on_time}
        tail = asyncio.ensure_future(_all_done(list(missed.values())))
        if all(task.done() for task in missed.values()):
            await tail
            return Window(draft, tuple(missed))
        return Window(draft, tuple(missed), tail)

    async def _closed(self, maps: Sequence[asyncio.Future[Draft]]) -> None:
        """Returns when the window closes: enough reflections that can be used, the deadline with at least one, or all done."""
        enough = min(ceil(self.close * len(maps)), self.count or len(maps))
        loop = asyncio.get_running_loop()
        until = None if self.deadline_s is None else loop.time() + self.deadline_s
        while (waiting := [task for task in maps if not task.done()]) and (usable := _count(maps)) < enough:
            left_s = None if until is None else until - loop.time()
            if left_s is not None and left_s <= 0:
                if usable:
                    return
                left_s = None
            await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    async def _reduced(
        self, brief: Brief, llm: Asker, drafts: Sequence[Draft], late: Sequence[str], groups: int
    ) -> Draft:
        """One text of all; no call where there is only one."""
        versions = list(dict.fromkeys([*(draft.text for draft in drafts), *_texts(late)]))
        note = f"united from {len(drafts)} of {groups} reflections" + (f" and {len(late)} late ones" if late else "")
        if len(versions) == 1:
            return Draft(versions[0], drafts[0].raw if drafts else late[0], note)
        told = "\n\n".join(fenced(text) for text in versions)
        parts = {"{component}": brief.component, "{current}": fenced(brief.current), "{versions}": told}
        prompt = re.sub(r"\{component\}|\{current\}|\{versions\}", lambda match: parts[match[0]], self.prompt)
        reply = await llm.complete(prompt, max_tokens=self.max_tokens, temperature=self.reflect.temperature)
        return Draft(extract(reply), reply.text, note)


def split(records: Sequence[Record], copies: int, groups: int, draw: Random) -> list[tuple[Record, ...]]:
    """The records ``copies`` times, shuffled, in ``groups`` groups of nearly equal size; no group reads one twice."""
    dealt: list[list[int]] = [[] for _ in range(groups)]
    for _ in range(min(copies, groups)):
        for record in draw.sample(range(len(records)), len(records)):
            free = [group for group in dealt if record not in group]
            min(free, key=len).append(record)
    return [tuple(records[i] for i in group) for group in dealt]


def _count(maps: Sequence[asyncio.Future[Draft]]) -> int:
    return sum(1 for task in maps if task.done() and not task.cancelled() and task.exception() is None)


def _usable(maps: Mapping[str, asyncio.Future[Draft]]) -> list[Draft]:
    """The drafts there are. A group whose reply cannot be used, or whose model failed, is missing; when all are, that is raised."""
    errors = [error for task in maps.values() if (error := task.exception()) is not None]
    if fatal := [error for error in errors if not isinstance(error, (BadReply, ModelError))]:
        raise fatal[0]
    drafts = [task.result() for task in maps.values() if task.exception() is None]
    if not drafts:
        raise errors[0]
    return drafts


def _texts(late: Sequence[str]) -> list[str]:
    """The texts of late replies, those that have one."""
    texts = []
    for raw in late:
        try:
            texts.append(extract(Reply(raw, "stop")))
        except BadReply:
            continue
    return texts


async def _all_done(waiting: Sequence[asyncio.Future[Draft]]) -> None:
    """Waits for what missed the window; how each of them ends is in the log."""
    try:
        await asyncio.gather(*waiting, return_exceptions=True)
    finally:
        for task in waiting:
            task.cancel()
