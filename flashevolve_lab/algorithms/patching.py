"""The patch seam: an LLM reads a stale text, what it was made from, and what was committed since, and says what becomes of it.

Owns `StaleBrief` (what a patcher reads), `Patch` (its verdict), and the default `Reconcile` (the Reflective Async of FlashEvolve,
arXiv 2605.08520 §3), which judges one stale text or distills several into one. One rule a change must keep: a patched text takes the gate like any other; what cannot be read as a verdict
is refused with the raw reply kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from flashevolve_lab.algorithms.reflecting import extract, fenced
from flashevolve_lab.errors import BadReply
from flashevolve_lab.llm import Reply
from flashevolve_lab.tasks import Asker

Decision = Literal["accept", "patch", "discard"]
RELATIONS = ("complementary", "subsumed", "conflicting")


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit since the stale text's base version: the artifact, its text of the component, and its mean validation score."""

    version: int
    artifact: str
    text: str
    mean: float


@dataclass(frozen=True, slots=True)
class StaleBrief:
    """What a patcher gets.

    Attributes:
        component: The component in question.
        stale: The stale text. base: The text it was made from. current: The text of its current counterpart.
        history: Commits since its base version, the newest last.
    """

    component: str
    stale: str
    base: str
    current: str
    history: tuple[CommitRecord, ...]


@dataclass(frozen=True, slots=True)
class Patch:
    """A patcher's verdict: the decision, the reason, what it said of each idea ("complementary: quote the source"), the text."""

    decision: Decision
    reason: str
    ideas: tuple[str, ...] = ()
    text: str = ""
    raw: str = ""


class Patcher(Protocol):
    """Judges a stale text with a model. Calls through ``llm`` are limited, retried and charged.

    One that has ``distil`` too (see `Distiller`) is given several at once where the policy allows it.
    """

    async def patch(self, brief: StaleBrief, llm: Asker) -> Patch:
        """The verdict. Raises `BadReply` when the reply cannot be read as one."""
        ...

    def describe(self) -> dict[str, Any]:
        """JSON-able facts for the log."""
        ...


@runtime_checkable
class Distiller(Protocol):
    """Judges several stale texts of one component at once, against the same current text."""

    async def distil(self, briefs: Sequence[StaleBrief], llm: Asker) -> Sequence[Patch]:
        """A verdict for each brief, in their order; all that say ``patch`` carry the same text. Raises `BadReply` like ``patch``."""
        ...


PROMPT = """\
An assistant's instruction (component "{component}") is being improved by many hands at once. A revision was written for an older
version; meanwhile others were adopted. Decide what becomes of the revision.

The revision:

{stale}

The current version, which it would have to improve on:

{current}

The older version that the revision was written for (quoted):

{base}

Adopted since, the newest last (quoted):

{history}

For each idea the revision adds to the older version, say whether it is complementary to what was adopted since, subsumed by it, or
conflicting with it. Leave out what only fits single examples; keep principles that carry over. Then decide: accept (the revision
can stand as it is), patch (write the current version with the revision's complementary ideas worked in), or discard (nothing of
it is left). Answer in exactly this form, the fenced block only when you patch:

IDEA: complementary | subsumed | conflicting: the idea in a few words   (one line for each idea)
DECISION: accept | patch | discard
REASON: one sentence
then the complete new instruction in one block, opened and closed by a line of three backticks.
"""
TOGETHER = """\
An assistant's instruction (component "{component}") is being improved by many hands at once. {count} revisions were written for older
versions; meanwhile others were adopted. Decide what becomes of each revision.

{revisions}

The current version, which they would have to improve on:

{current}

Adopted since, the newest last (quoted):

{history}

For each idea that a revision adds to its older version, say whether it is complementary to what was adopted since and to the other
revisions, subsumed by it, or conflicting with it. Leave out what only fits single examples; keep principles that carry over. Then
decide on each revision: accept (it can stand as it is), patch (its complementary ideas go into one new instruction), or discard
(nothing of it is left). Write ONE new instruction: the current version with the complementary ideas of all revisions that you patch
worked in. Answer in exactly this form, these lines for every revision, 1 to {count}, and the fenced block only when you patch one:

IDEA 1: complementary | subsumed | conflicting: the idea in a few words   (one line for each idea)
DECISION 1: accept | patch | discard
REASON 1: one sentence
then the complete new instruction in one block, opened and closed by a line of three backticks.
"""
LISTED = 8  # commits shown, the newest
QUOTED = 1_500  # characters of a text in the history


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Asks a model for the verdict: one call per stale text, or one for several.

    Args:
        prompt: A template with ``{component}``, ``{stale}``, ``{current}``, ``{base}`` and ``{history}``.
        max_tokens: Upper bound of the reply, in tokens.
        temperature: Sampling temperature, or None for the server's default.
        together: The template for several, with ``{component}``, ``{count}``, ``{revisions}``, ``{current}`` and ``{history}``.
    """

    prompt: str = PROMPT
    max_tokens: int = 4096
    temperature: float | None = 0.7
    together: str = TOGETHER

    async def patch(self, brief: StaleBrief, llm: Asker) -> Patch:
        """The model's verdict."""
        return read_verdict(await llm.complete(self.render(brief), max_tokens=self.max_tokens, temperature=self.temperature))

    async def distil(self, briefs: Sequence[StaleBrief], llm: Asker) -> Sequence[Patch]:
        """The model's verdict on each."""
        asked = self.render_together(briefs)
        return read_verdicts(await llm.complete(asked, max_tokens=self.max_tokens, temperature=self.temperature), len(briefs))

    def render(self, brief: StaleBrief) -> str:
        """The prompt as sent: what may be taken over is fenced, what is only told is quoted."""
        parts = {
            "{component}": brief.component,
            "{stale}": fenced(brief.stale),
            "{current}": fenced(brief.current),
            "{base}": _quoted(brief.base),
            "{history}": _told(brief.history),
        }
        return _filled(self.prompt, parts)

    def render_together(self, briefs: Sequence[StaleBrief]) -> str:
        """The prompt for several: each revision fenced under its number, with the older version it was written for quoted."""
        longest = max((brief.history for brief in briefs), key=len)
        revisions = [
            f"Revision {n}:\n\n{fenced(brief.stale)}\n\nwritten for this older version (quoted):\n\n{_quoted(brief.base)}"
            for n, brief in enumerate(briefs, 1)
        ]
        parts = {
            "{component}": briefs[0].component,
            "{count}": str(len(briefs)),
            "{revisions}": "\n\n".join(revisions),
            "{current}": fenced(briefs[0].current),
            "{history}": _told(longest),
        }
        return _filled(self.together, parts)

    def describe(self) -> dict[str, Any]:
        """Facts for the log."""
        return {"name": "Reconcile", "max_tokens": self.max_tokens, "temperature": self.temperature}


def read_verdict(reply: Reply) -> Patch:
    """The verdict in a reply.

    Raises:
        BadReply: truncated or unclosed, no decision in it, or a patch without a text.
    """
    text = reply.text
    said = _said(text)
    if said.decision is None and "```" not in text:
        raise BadReply("the reply has no DECISION line and no fenced block", text, "no_text")
    order = said.decision or "patch"
    return Patch(order, said.reason, said.ideas, extract(reply) if order == "patch" else "", text)


def read_verdicts(reply: Reply, count: int) -> tuple[Patch, ...]:
    """The verdicts on ``count`` stale texts in one reply, in their order.

    Raises:
        BadReply: truncated or unclosed, a stale text without a decision, or a patch without a text.
    """
    said = [_said(reply.text, n) for n in range(1, count + 1)]
    if missing := [str(n) for n, one in enumerate(said, 1) if one.decision is None]:
        why = f"the reply has no DECISION line for {', '.join(missing)} of {count} revisions"
        raise BadReply(why, reply.text, "truncated" if reply.finish == "length" else "no_text")
    text = extract(reply) if any(one.decision == "patch" for one in said) else ""
    return tuple(
        Patch(one.decision or "patch", one.reason, one.ideas, text if one.decision == "patch" else "", reply.text)
        for one in said
    )


@dataclass(frozen=True, slots=True)
class _Said:
    decision: Decision | None
    reason: str
    ideas: tuple[str, ...]


def _said(text: str, number: int | None = None) -> _Said:
    """The lines of a verdict in front of the fenced block, those with this number where there are several verdicts."""
    outside = text.split("```", 1)[0]
    n = "" if number is None else rf"\W+{number}\b"
    ideas = re.findall(rf"^\s*IDEA{n}:\s*(.+)$", outside, re.MULTILINE | re.IGNORECASE)
    decision = re.search(rf"^\W*DECISION{n}\W+(accept|patch|discard)", outside, re.MULTILINE | re.IGNORECASE)
    reason = re.search(rf"^\W*REASON{n}\W+(.+)$", outside, re.MULTILINE | re.IGNORECASE)
    why = reason[1].strip() if reason else " ".join(outside.split())[:300] if number is None else "no reason was given"
    order = decision[1].lower() if decision else None
    assert order is None or order in get_args(Decision)
    return _Said(order, why, tuple(" ".join(line.split()) for line in ideas))  # type: ignore[arg-type]


def _filled(template: str, parts: dict[str, str]) -> str:
    names = "|".join(name[1:-1] for name in parts)
    return re.sub(rf"\{{({names})\}}", lambda match: parts[match[0]], template)


def _told(history: Sequence[CommitRecord]) -> str:
    told = [f"> version {c.version}, score {c.mean:.3f}:\n{_quoted(c.text)}" for c in history[-LISTED:]]
    return "\n".join(told) or "> nothing that touches this component"


def _quoted(text: str) -> str:
    short = text if len(text) <= QUOTED else text[:QUOTED] + f" […{len(text) - QUOTED:,} characters more]"
    return "\n".join(f"> {line.replace('```', chr(39) * 3)}" for line in short.splitlines())
