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

Which change of the instructions helps most?
{changes}
Answer with the number of one change."""
SHOWN_CHARACTERS = 400
"""How much of an input, output or feedback the question quotes."""


@dataclass(frozen=True, slots=True)
class Change:
    """One operation on a list of lines, in words, with the list it leads to."""

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
    of another, drop one, move one to the front), shows them with the worst rollout, and asks for a number.

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
        """The recombined instruction: one call, whose answer is constrained to the numbers of the candidates."""
        changes = self.draw(brief.current, brief.draw)
        numbers = [str(i + 1) for i in range(len(changes))]
        reply = await llm.complete(render(brief, changes), max_tokens=8, temperature=0.0, choices=numbers)
        chosen = reply.text.strip().rstrip(".")
        if chosen not in numbers:
            raise BadReply(f"expected a number from 1 to {len(changes)}; got {reply.text!r}", reply.text, "no_choice")
        change = changes[int(chosen) - 1]
        return Draft(change.text, f"{reply.text}\n\n{change.words}")

    def draw(self, current: str, draw: Random) -> tuple[Change, ...]:
        """Up to ``candidates`` different changes of ``current``, each leading to another text than it; at least one."""
        now = lines_of(current)
        new = [line for line in self.lines if line not in now]
        possible = [*_added(now, new, self.most_lines), *_replaced(now, new), *_dropped(now), *_moved(now)]
        distinct = {change.text: change for change in possible if change.text not in ("", current)}
        return tuple(draw.sample(list(distinct.values()), min(self.candidates, len(distinct))))

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


def render(brief: Brief, changes: Sequence[Change]) -> str:
    """The question as sent: the instruction, its worst rollout, and the numbered changes."""
    worst = min(brief.records, key=lambda record: record.score, default=Record("", "", 0.0, ""))
    return PROMPT.format(
        current=brief.current,
        input=worst.input[:SHOWN_CHARACTERS],
        output=worst.output[:SHOWN_CHARACTERS],
        feedback=worst.feedback[:SHOWN_CHARACTERS],
        changes="\n".join(f"{i + 1}. {change.words}" for i, change in enumerate(changes)),
    )


def _added(now: tuple[str, ...], new: Sequence[str], most: int) -> list[Change]:
    if len(now) >= most:
        return []
    return [Change(f"Add: {line}", (*now, line)) for line in new]


def _replaced(now: tuple[str, ...], new: Sequence[str]) -> list[Change]:
    return [
        Change(f"Instead of: {old} Say: {line}", (*now[:i], line, *now[i + 1 :]))
        for i, old in enumerate(now)
        for line in new
    ]


def _dropped(now: tuple[str, ...]) -> list[Change]:
    if len(now) < 2:
        return []
    return [Change(f"Drop: {old}", (*now[:i], *now[i + 1 :])) for i, old in enumerate(now)]


def _moved(now: tuple[str, ...]) -> list[Change]:
    return [Change(f"Begin with: {old}", (old, *now[:i], *now[i + 1 :])) for i, old in enumerate(now) if i > 0]
