"""The default proposer: one call to the reflection model, and the careful extraction of a text from its reply.

Owns the reflection prompt and `extract`. One rule a change must keep: when in doubt the reply is refused, with its kind and
its raw text; a wrong prompt in the pool costs more than a repeated call.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from flashevolve_lab.algorithms.fitting import Evidence, fitted
from flashevolve_lab.algorithms.proposing import Brief, Draft
from flashevolve_lab.algorithms.remembering import told
from flashevolve_lab.errors import BadReply, Refused, SetupError
from flashevolve_lab.llm import Reply
from flashevolve_lab.tasks import Asker

FITS = 4  # attempts to fit the evidence when a server says that it is too long
CHARACTERS_A_TOKEN = 3  # on the safe side for English; servers that count differently refuse, and the evidence is halved
_TOO_LONG = re.compile(r"context|too long|too large|maximum.{0,20}(tokens|length)|413", re.IGNORECASE)

PROMPT = """\
You improve the instruction that an assistant works by. This is the instruction it has now (component "{component}"):

{current}

With it, the assistant was given the following inputs. For each you see its answer, its score and what was said about it.

{records}

Find out what the inputs have in common, what went wrong and which facts, rules or strategies the feedback gives away that the
instruction lacks. Keep what already works. Write the complete new instruction, general enough for further inputs of this kind,
and put it into exactly one fenced block, opened and closed by a line of three backticks (more, if the text contains such lines).
"""


@dataclass(frozen=True, slots=True)
class Reflect:
    """Asks the reflection model for a better text.

    Args:
        prompt: A template with ``{component}``, ``{current}`` and ``{records}``.
        max_tokens: Upper bound of the reply, in tokens. A reply cut off there is refused.
        temperature: Sampling temperature, or None for the server's default.
    """

    prompt: str = PROMPT
    max_tokens: int = 4096
    temperature: float | None = 1.0

    def __post_init__(self) -> None:
        if lacking := [name for name in ("{current}", "{records}") if name not in self.prompt]:
            raise SetupError(f"Reflect(prompt=…): the template lacks {' and '.join(lacking)}")

    async def propose(self, brief: Brief, llm: Asker) -> Draft:
        """The rewritten component. Evidence that exceeds the model's context is fitted to it, and the draft's note says so."""
        answer = min(self.max_tokens, llm.context_tokens // 4) if llm.context_tokens else self.max_tokens
        room = self._room(brief, llm.context_tokens, answer)
        for attempt in range(FITS):
            memory = told(brief.rejected, None if room is None else room // 4)
            evidence = fitted(brief.records, None if room is None else room - len(memory))
            prompt = self.render(brief, evidence, memory)
            try:
                reply = await llm.complete(prompt, max_tokens=answer, temperature=self.temperature)
            except Refused as error:
                if attempt == FITS - 1 or not _TOO_LONG.search(str(error)):
                    raise
                room = (len(evidence.text) + len(memory)) // 2
            else:
                return Draft(extract(reply), reply.text, evidence.note)
        raise AssertionError("unreachable")

    def render(self, brief: Brief, evidence: Evidence, memory: str = "") -> str:
        """The prompt as sent; what was rejected before (``memory``) follows the records."""
        parts = {"{component}": brief.component, "{current}": fenced(brief.current), "{records}": evidence.text + memory}
        return re.sub(r"\{component\}|\{current\}|\{records\}", lambda match: parts[match[0]], self.prompt)

    def _room(self, brief: Brief, context_tokens: int | None, answer: int) -> int | None:
        """Characters for the evidence: what the context leaves beside the answer, the template and the current text."""
        if context_tokens is None:
            return None
        fixed = len(self.prompt) + len(brief.current)
        return max(0, (context_tokens - answer) * CHARACTERS_A_TOKEN - fixed)

    def describe(self) -> dict[str, Any]:
        """Facts for the log."""
        prompt = hashlib.sha256(self.prompt.encode()).hexdigest()[:8]
        return {"name": "Reflect", "prompt": prompt, "max_tokens": self.max_tokens, "temperature": self.temperature}


def fenced(text: str) -> str:
    """The text in a fenced block, with a fence longer than any inside it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"


TAGS = frozenset(
    [
        "text",
        "txt",
        "plain",
        "plaintext",
        "markdown",
        "md",
        "prompt",
        "instruction",
        "instructions",
        "xml",
        "html",
        "json",
        "yaml",
        "python",
    ]
)
_FENCE = re.compile(r"^ {0,3}(`{3,})(.*)$", re.MULTILINE)
_THINKING = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)


def extract(reply: Reply) -> str:
    """The text in the reply's outermost fenced block.

    A block inside the block (an example) stays part of it. The rest of an opening line is a language tag only when it is one of
    `TAGS`; otherwise it belongs to the text.

    Raises:
        BadReply: truncated, unclosed (thinking or fence), no_text, ambiguous (several blocks side by side), or empty.
    """
    if reply.finish == "length":
        raise BadReply("the reply was cut off at max_tokens; raise Reflect(max_tokens=…)", reply.text, "truncated")
    text = _without_thinking(reply)
    blocks = _outer_blocks(text, reply.text)
    if not blocks:
        raise BadReply("the reply has no fenced block", reply.text, "no_text")
    if len(blocks) > 1:
        raise BadReply(f"the reply has {len(blocks)} fenced blocks side by side, expected one", reply.text, "ambiguous")
    if not blocks[0].strip():
        raise BadReply("the fenced block is empty", reply.text, "empty")
    return blocks[0].strip()


def _without_thinking(reply: Reply) -> str:
    """The reply without the thinking in front of its first fence; such tags inside the fenced text belong to the text."""
    text = reply.text
    first = _THINKING.search(text)
    if first and first[1]:  # closed but never opened: the chat template had opened it
        _outer_blocks(
            text[: first.start()], text
        )  # unless it stands inside a fenced text: then nobody can tell, and it is refused
        text = text[first.end() :]
    while (tag := _THINKING.search(text)) and not _FENCE.search(text, 0, tag.start()):
        end = _THOUGHT.search(text, tag.end())
        if end is None:
            raise BadReply("the reply's thinking was never closed", reply.text, "unclosed")
        text = text[: tag.start()] + text[end.end() :]
    return text


def _outer_blocks(text: str, raw: str) -> list[str]:
    """Top-level fenced blocks. A tagged fence inside a block opens a nested one; a bare fence closes the innermost."""
    blocks: list[str] = []
    open_fences: list[int] = []
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):  # no other line ends: they belong to the text
        match = _FENCE.match(line)
        ticks, rest = (len(match[1]), match[2].strip()) if match else (0, "")
        if not open_fences:
            if match:
                open_fences, lines = [ticks], [] if not rest or rest.lower() in TAGS else [rest]
                if rest.endswith("`" * ticks):  # opened and closed on one line
                    blocks.append(rest.rstrip("`"))
                    open_fences = []
            continue
        if match and not rest and ticks >= open_fences[-1]:
            open_fences.pop()
            if not open_fences:
                blocks.append("\n".join(lines))
                continue
        elif match and rest and "`" not in rest and " " not in rest:
            open_fences.append(ticks)
        lines.append(line)
    if open_fences:
        raise BadReply("a fenced block of the reply is never closed", raw, "unclosed")
    return blocks
