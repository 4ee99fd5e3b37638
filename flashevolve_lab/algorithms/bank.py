"""`InstructionBank`: a proposer for models too small to write an instruction themselves.

Owns the operations on a list of instruction lines (add, replace, drop, move) and the one constrained call by which the
model picks among a few of them. It says so wherever it is shown: the words come from the bank, not from the model. One
rule a change must keep: candidates are drawn from the brief's own stream: the same brief and reply give the same text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from flashevolve_lab.algorithms.proposing import Brief, Draft, Record
from flashevolve_lab.errors import BadReply, SetupError
from flashevolve_lab.tasks import Asker

PROMPT = """\
An assistant works by these instructions:
{current}

It was asked:
{input}
It answered: {output}
{feedback}

Which change helps most? Answer with one of these lines:
{changes}"""
SHOWN_CHARACTERS = 400
"""How much of an input, output or feedback the question quotes."""


@dataclass(frozen=True, slots=True)
class Change:
    """One operation on a list of lines, in words, with the list it leads to.

    The words begin with the line they are about: a model that decodes one of several choices decides at the first word
    that differs, and would otherwise always take the same operation.
    """

    words: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The instruction it leads to."""
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class InstructionBank:
    """Lets the model choose among recombinations of ready-made instruction lines.

    The instruction is a list of lines. Each proposal draws a few changes (add a line of the bank, put one in the place
    of another, drop one, move one to the front), shows them with the worst rollout, and lets the model write one of them.
    SmolLM2-135M picks by the words, yet hardly better than a coin: what selects is the gate after it.

    Args:
        bank: The lines; or the path of a text file (one a line) or of a ``.jsonl`` file (its field ``"line"``).
        candidates: How many changes the model chooses among, at least 2.
        most_lines: An instruction grows to at most this many lines.

    Raises:
        SetupError: when there are fewer than two distinct lines, or the file cannot be read.
    """

    bank: Sequence[str] | str | os.PathLike[str]
    candidates: int = 4
    most_lines: int = 4

    def __post_init__(self) -> None:
        lines = self.bank if not isinstance(self.bank, (str, os.PathLike)) else lines_in(Path(self.bank))
        distinct = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
        if len(distinct) < 2:
            raise SetupError(f"InstructionBank: expected at least two different lines, got {len(distinct)}. Add some.")
        if self.candidates < 2 or self.most_lines < 1:
            raise SetupError("InstructionBank: candidates must be at least 2 and most_lines at least 1")
        object.__setattr__(self, "bank", distinct)

    @property
    def lines(self) -> tuple[str, ...]:
        """The distinct lines of the bank, in order."""
        assert not isinstance(self.bank, (str, os.PathLike))
        return tuple(self.bank)

    async def propose(self, brief: Brief, llm: Asker) -> Draft:
        """The recombined instruction: one call, whose answer is constrained to the candidates' words."""
        changes = {change.words: change for change in self.draw(brief.current, brief.draw)}
        most = 1 + max(len(words.encode()) for words in changes)  # a token is at least one byte; one ends the text
        question = render(brief, list(changes))
        reply = await llm.complete(question, max_tokens=most, temperature=0.0, choices=list(changes))
        change = changes.get(reply.text.strip().removeprefix("- "))
        if change is None:
            raise BadReply(f"expected one of the {len(changes)} changes; got {reply.text!r}", reply.text, "no_choice")
        return Draft(change.text, reply.text)

    def draw(self, current: str, draw: Random) -> tuple[Change, ...]:
        """Up to ``candidates`` different changes of ``current``, each leading to another text than it; at least one."""
        now = lines_of(current)
        new = [line for line in self.lines if line not in now]
        kinds = [_added(now, new, self.most_lines), _replaced(now, new), _dropped(now), _moved(now)]
        return tuple(drawn(kinds, self.candidates, draw, {"", current}))

    def describe(self) -> dict[str, Any]:
        """Facts for the log, with a label that says where the words come from."""
        label = (
            f"reflection chooses and recombines from a shipped bank of {len(self.lines)} instructions "
            "(a 135M model cannot reflect freely)"
        )
        facts = {"lines": len(self.lines), "candidates": self.candidates, "most_lines": self.most_lines}
        return {"name": "InstructionBank", "label": label, **facts}


def lines_of(text: str) -> tuple[str, ...]:
    """The instruction lines of a text: without blank ones and outer spaces."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def lines_in(path: Path) -> list[str]:
    """The lines of a bank file.

    Raises:
        SetupError: when it cannot be read, or a row of a ``.jsonl`` file has no text ``"line"``.
    """
    try:
        rows = [row for row in path.read_text(encoding="utf-8").splitlines() if row.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"InstructionBank: cannot read {path} ({error}). Give a UTF-8 text file") from error
    if path.suffix != ".jsonl":
        return rows
    try:
        return [str(json.loads(row)["line"]) for row in rows]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        expected = '{"line": "Be brief."}'
        raise SetupError(f"InstructionBank: expected rows like {expected} in {path}; got {error!r}") from error


def drawn(kinds: Sequence[list[Change]], most: int, draw: Random, known: set[str]) -> list[Change]:
    """At most ``most`` changes, each of a kind drawn first and then from that kind, that lead to different unknown texts."""
    left = [draw.sample(kind, len(kind)) for kind in kinds if kind]
    found: dict[str, Change] = {}
    while left and len(found) < most:
        kind = draw.choice(left)
        change = kind.pop()
        if change.text not in known:
            found.setdefault(change.text, change)
        left = [kind for kind in left if kind]
    return list(found.values())


def render(brief: Brief, words: Sequence[str]) -> str:
    """The question as sent: the instruction, its worst rollout, and the changes in words."""
    worst = min(brief.records, key=lambda record: record.score, default=Record("", "", 0.0, ""))
    return PROMPT.format(
        current=brief.current,
        input=worst.input[:SHOWN_CHARACTERS],
        output=worst.output[:SHOWN_CHARACTERS],
        feedback=worst.feedback[:SHOWN_CHARACTERS],
        changes="\n".join(f"- {change}" for change in words),
    )


def _added(now: tuple[str, ...], new: Sequence[str], most: int) -> list[Change]:
    if len(now) >= most:
        return []
    return [Change(f"{line} (add it)", (*now, line)) for line in new]


def _replaced(now: tuple[str, ...], new: Sequence[str]) -> list[Change]:
    return [
        Change(f"{line} (instead of line {i + 1})", (*now[:i], line, *now[i + 1 :])) for i in range(len(now)) for line in new
    ]


def _dropped(now: tuple[str, ...]) -> list[Change]:
    if len(now) < 2:
        return []
    return [Change(f"{old} (drop line {i + 1})", (*now[:i], *now[i + 1 :])) for i, old in enumerate(now)]


def _moved(now: tuple[str, ...]) -> list[Change]:
    return [
        Change(f"{old} (move line {i + 1} to the front)", (old, *now[:i], *now[i + 1 :])) for i, old in enumerate(now) if i > 0
    ]
