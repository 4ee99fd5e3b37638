"""The patch seam: an LLM reads a stale text, what it was made from, and what was committed since, and says what becomes of it.

Owns `StaleBrief` (what a patcher reads), `Patch` (its verdict), and the default `Reconcile` (the Reflective Async of FlashEvolve,
arXiv 2605.08520 §3). One rule a change must keep: a patched text takes the gate like any other; what cannot be read as a verdict
is refused with the raw reply kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, Protocol

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
    """Judges a stale text with a model. Calls through ``llm`` are limited, retried and charged."""

    async def patch(self, brief: StaleBrief, llm: Asker) -> Patch:
        """The verdict. Raises `BadReply` when the reply cannot be read as one."""
        ...

    def describe(self) -> dict[str, Any]:
        """JSON-able facts for the log."""
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
LISTED = 8  # commits shown, the newest
QUOTED = 1_500  # characters of a text in the history


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Asks a model for the verdict, one call per stale text.

    Args:
        prompt: A template with ``{component}``, ``{stale}``, ``{current}``, ``{base}`` and ``{history}``.
        max_tokens: Upper bound of the reply, in tokens.
        temperature: Sampling temperature, or None for the server's default.
    """

    prompt: str = PROMPT
    max_tokens: int = 4096
    temperature: float | None = 0.7

    async def patch(self, brief: StaleBrief, llm: Asker) -> Patch:
        """The model's verdict."""
        return read_verdict(await llm.complete(self.render(brief), max_tokens=self.max_tokens, temperature=self.temperature))

    def render(self, brief: StaleBrief) -> str:
        """The prompt as sent: what may be taken over is fenced, what is only told is quoted."""
        history = [f"> version {c.version}, score {c.mean:.3f}:\n{_quoted(c.text)}" for c in brief.history[-LISTED:]]
        parts = {
            "{component}": brief.component,
            "{stale}": fenced(brief.stale),
            "{current}": fenced(brief.current),
            "{base}": _quoted(brief.base),
            "{history}": "\n".join(history) or "> nothing that touches this component",
        }
        return re.sub(r"\{(component|stale|current|base|history)\}", lambda match: parts[match[0]], self.prompt)

    def describe(self) -> dict[str, Any]:
        """Facts for the log."""
        return {"name": "Reconcile", "max_tokens": self.max_tokens, "temperature": self.temperature}


def read_verdict(reply: Reply) -> Patch:
    """The verdict in a reply.

    Raises:
        BadReply: truncated or unclosed, no decision in it, or a patch without a text.
    """
    text = reply.text
    outside = text.split("```", 1)[0]
    ideas = tuple(" ".join(line.split()) for line in re.findall(r"^\s*IDEA:\s*(.+)$", outside, re.MULTILINE | re.IGNORECASE))
    decision = re.search(r"^\W*DECISION\W+(accept|patch|discard)", outside, re.MULTILINE | re.IGNORECASE)
    reason = re.search(r"^\W*REASON\W+(.+)$", outside, re.MULTILINE | re.IGNORECASE)
    why = reason[1].strip() if reason else " ".join(outside.split())[:300]
    if decision is None and "```" not in text:
        raise BadReply("the reply has no DECISION line and no fenced block", text, "no_text")
    order = decision[1].lower() if decision else "patch"
    if order == "accept":
        return Patch("accept", why, ideas, "", text)
    if order == "discard":
        return Patch("discard", why, ideas, "", text)
    return Patch("patch", why, ideas, extract(reply), text)


def _quoted(text: str) -> str:
    short = text if len(text) <= QUOTED else text[:QUOTED] + f" […{len(text) - QUOTED:,} characters more]"
    return "\n".join(f"> {line.replace('```', chr(39) * 3)}" for line in short.splitlines())
