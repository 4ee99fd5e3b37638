"""Landscapes: what a *simulated* model knows, and the data that go with it. No language model is involved.

Owns the three built-in landscapes, the protocol for more, and keyed draws. Knows no time, no loop and no server
(`llm.simulator`). One rule a change must keep: an answer is a pure function of the landscape (its seed included) and of
the request's content, so that two optimizers that send the same requests, in whatever order, see the same world.

A prompt is judged by the set of ``RULE-<n>.`` marks in it. A reflection reads the current prompt in the first fenced
block of its request and the sentences ``required rule is RULE-<n>.`` of the metric's feedback, and returns the prompt
with one rule more or one fewer. A reflection that would lose a rule which a quoted, rejected change of its request (``> - …
RULE-<n>.``) took out adds one instead: it was told that this does not work. A patch returns the union of the rules of all fenced blocks; where it is asked about several
revisions, it says of each what it adds to the current prompt (the last block), and discards those that add nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist
from typing import Any, Literal, Protocol, TypeVar

from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm.seam import Message, Request

Role = Literal["task", "reflection", "patch"]
T = TypeVar("T")

_RULE = re.compile(r"RULE-(\d+)\.")
_WANTED = re.compile(r"required rule is RULE-(\d+)\.")
_REJECTED = re.compile(r"^> - .*?RULE-(\d+)\.", re.MULTILINE)
_NEEDED = re.compile(r"needs rules? (\d+(?:, \d+)*)")
_REVISION = re.compile(r"^Revision 2:$", re.MULTILINE)  # a request about several revisions at once
_BLOCK = re.compile(r"^[ \t]*(`{3,})[^\n`]*\n(.*?)^[ \t]*\1`*[ \t]*$", re.MULTILINE | re.DOTALL)
_NORMAL = NormalDist()
_OPENINGS = (
    "Answer the question",
    "Read the question twice, then answer it",
    "You answer questions with care",
    "Give a short, exact answer to the question",
    "Solve the task below",
)
_HINTS = ("Name the unit.", "Check the sign.", "Quote the source.", "Round once.", "Test the edges.", "Keep the order.")
_REMARKS = ("Here is the improved instruction.", "I revised the instruction.", "The feedback suggests this text.")


class Draw:
    """A small stream of random numbers fixed by its key: the same key gives the same numbers on every machine."""

    __slots__ = ("_at", "_block")

    def __init__(self, *key: object) -> None:
        self._block = blake2b("|".join(map(str, key)).encode("utf-8", "surrogatepass")).digest()
        self._at = 0

    def uniform(self) -> float:
        """A number strictly between 0 and 1."""
        if self._at == 64:
            self._block, self._at = blake2b(self._block).digest(), 0
        bits = int.from_bytes(self._block[self._at : self._at + 8], "big") >> 12
        self._at += 8
        return (bits + 0.5) / (1 << 52)

    def choice(self, items: Sequence[T]) -> T:
        """One of the items, each equally likely."""
        return items[int(self.uniform() * len(items))]

    def lognormal(self, mean: float, sigma: float) -> float:
        """A log-normal number with this mean; ``sigma``: standard deviation of its logarithm (0: always the mean)."""
        if sigma <= 0.0 or mean <= 0.0:
            return mean
        return mean * math.exp(sigma * _NORMAL.inv_cdf(self.uniform()) - sigma * sigma / 2)


def role_of(name: str) -> Role:
    """What a role or model name stands for: "…patch…" a patch, "…reflect…" a reflection, anything else the task."""
    if "patch" in name:
        return "patch"
    return "reflection" if "reflect" in name else "task"


def content_key(role: str, messages: Iterable[Message]) -> str:
    """A hash of what was asked (role and messages; not temperature, limits or priority): the key of every draw."""
    text = "\x1e".join([f"{m['role']}:{m['content']}" for m in messages])
    return blake2b(f"{role}\x1e{text}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Landscape(Protocol):
    """A simulated model's knowledge and the matching data."""

    @property
    def seed(self) -> int:
        """Key of this landscape's draws."""
        ...

    @property
    def seed_prompt(self) -> str:
        """The prompt an evolution starts from."""
        ...

    def examples(self, n: int, offset: int = 0) -> tuple[Mapping[str, Any], ...]:
        """Examples number ``offset`` to ``offset + n - 1``; each has an ``"input"``."""
        ...

    def metric(self, example: Mapping[str, Any], output: object) -> tuple[float, str]:
        """The score in [0, 1] of an output, and the feedback that a reflection reads."""
        ...

    def answer(self, request: Request, draw: Draw) -> str:
        """The model's text, decided by the request's content and the draw alone."""
        ...


@lru_cache(maxsize=8192)
def rules_in(text: str) -> frozenset[int]:
    """The rules a prompt carries: every n of a ``RULE-<n>.`` in it."""
    return frozenset(map(int, _RULE.findall(text)))


def fenced(text: str) -> list[str]:
    """The fenced blocks of a request, in order; without fences at line starts, what stands between triple backticks."""
    return [match[1] for match in _BLOCK.findall(text)] or text.split("```")[1::2]


def _said(request: Request, *roles: str) -> str:
    return "\n".join([m["content"] for m in request.messages if not roles or m["role"] in roles])


@lru_cache(maxsize=8192)
def _needs(text: str) -> tuple[int, ...]:
    found = _NEEDED.search(text)
    return tuple(map(int, found[1].split(", "))) if found else ()


def _solution(needs: Iterable[int]) -> str:
    return "ANSWER " + " ".join(map(str, needs))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """What the three landscapes share. See `IndependentRules` for the fields."""

    n_rules: int = 100
    p_improve: float = 0.5
    p_patch: float = 0.9
    noise: float = 0.0
    remark_words: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_rules < 1:
            raise SetupError(f"n_rules: expected at least 1; got {self.n_rules}. The examples share that many rules.")
        for name in ("p_improve", "p_patch", "noise"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise SetupError(f"{name}: expected a probability from 0 to 1; got {getattr(self, name)!r}")

    @property
    def seed_prompt(self) -> str:
        """The start: a prompt without rules, which solves nothing."""
        return "Answer the question (simulated). Follow these rules:"

    def examples(self, n: int, offset: int = 0) -> tuple[Mapping[str, Any], ...]:
        """Examples number ``offset`` to ``offset + n - 1``, each ``{"id", "input", "rules"}``."""
        return tuple(self._example(i) for i in range(offset, offset + n))

    def metric(self, example: Mapping[str, Any], output: object) -> tuple[float, str]:
        """1 when solved, partial credit where the landscape has it; the feedback names each missing rule."""
        needs, said = tuple(example["rules"]), str(output).strip()
        if said == _solution(needs):
            return 1.0, "Correct."
        met = set(map(int, re.findall(r"\d+", said))) & set(needs) if said.startswith("PARTLY ") else set()
        missing = " ".join(f"The required rule is RULE-{rule}." for rule in needs if rule not in met)
        return self.credit(len(met) / len(needs)), f"{'Partly right.' if met else 'Wrong.'} {missing}"

    def answer(self, request: Request, draw: Draw) -> str:
        """The simulated text for this request."""
        match role_of(request.role):
            case "task":
                return self._rollout(request, draw)
            case "reflection":
                return self._reflection(_said(request), draw)
            case "patch":
                return self._patch(_said(request), draw)

    def needs(self, i: int) -> tuple[int, ...]:
        """The rules that example ``i`` needs."""
        return (i % self.n_rules,)

    def met(self, needs: Sequence[int], have: frozenset[int]) -> tuple[int, ...]:
        """Those of the needed rules that a prompt with the rules ``have`` makes work."""
        return tuple(rule for rule in needs if rule in have)

    def learn(self, have: frozenset[int], rule: int, draw: Draw) -> frozenset[int]:
        """The rules after a successful reflection on ``rule``."""
        return have | {rule}

    def credit(self, share: float) -> float:
        """The score of an unsolved example of whose rules ``share`` (in [0, 1)) work."""
        return 0.0

    def _example(self, i: int) -> Mapping[str, Any]:
        needs = self.needs(i)
        noun = "rule" if len(needs) == 1 else "rules"
        text = f"Simulated question {i}: this item needs {noun} {', '.join(map(str, needs))}"
        return {"id": i, "input": text, "rules": list(needs)}

    def _rollout(self, request: Request, draw: Draw) -> str:
        needs = _needs(_said(request, "user"))
        met = self.met(needs, rules_in(_said(request, "system", "developer")))
        solved = bool(needs) and len(met) == len(needs)
        if self.noise and draw.uniform() < self.noise:
            solved, met = not solved, ()
        return _constrained(solved, _solution(needs), met, request.choices, draw)

    def _reflection(self, text: str, draw: Draw) -> str:
        blocks = fenced(text)
        have = rules_in(blocks[0]) if blocks else frozenset()
        wanted = sorted(set(map(int, _WANTED.findall(text))))
        if wanted and draw.uniform() < self.p_improve:
            have = self.learn(have, draw.choice([rule for rule in wanted if rule not in have] or wanted), draw)
        elif have:
            lost = draw.choice(sorted(have))
            if wanted and lost in set(map(int, _REJECTED.findall(text))):  # its first idea was rejected before: it has another
                have = self.learn(have, draw.choice([rule for rule in wanted if rule not in have] or wanted), draw)
            else:
                have = have - {lost}
        return self._written(draw.choice(_REMARKS), have, draw)

    def _patch(self, text: str, draw: Draw) -> str:
        blocks = fenced(text)
        have = frozenset(rule for block in blocks for rule in rules_in(block))
        if have and draw.uniform() >= self.p_patch:
            have = have - {draw.choice(sorted(have))}
        if not _REVISION.search(text) or len(blocks) < 3:
            return self._written("complementary", have, draw)
        verdicts, patches = self._verdicts([rules_in(block) for block in blocks[:-1]], rules_in(blocks[-1]))
        return self._written(verdicts, have, draw) if patches else verdicts

    def _verdicts(self, revisions: Sequence[frozenset[int]], current: frozenset[int]) -> tuple[str, int]:
        """What a simulated patch says of each of several revisions, and how many it takes over."""
        lines, patches = [], 0
        for n, revision in enumerate(revisions, 1):
            new, others = revision - current, current.union(*revisions[: n - 1], *revisions[n:])
            rivals = {rule: sorted(self._rivals(rule) & others) for rule in sorted(new)}
            lines += [
                f"IDEA {n}: conflicting: RULE-{rule}, a rival of RULE-{rivals[rule][0]}" for rule in rivals if rivals[rule]
            ]
            lines += [f"IDEA {n}: complementary: RULE-{rule}" for rule in rivals if not rivals[rule]]
            lines += [] if new else [f"IDEA {n}: subsumed: the current version has all its rules"]
            patches += bool(new)
            lines += [f"DECISION {n}: {'patch' if new else 'discard'}", f"REASON {n}: it adds {len(new)} rules (simulated)"]
        return "\n".join(lines), patches

    def _rivals(self, rule: int) -> frozenset[int]:
        """Rules that the rule excludes."""
        return frozenset()

    def _written(self, remark: str, rules: frozenset[int], draw: Draw) -> str:
        more = "".join(f" {draw.choice(_HINTS)[:-1].lower()}" for _ in range(self.remark_words))
        lines = [f"- RULE-{rule}. {_HINTS[rule % len(_HINTS)]}" for rule in sorted(rules)]
        head = f"{draw.choice(_OPENINGS)} (simulated, variant {int(draw.uniform() * 2**32):08x}). Follow these rules:"
        return f"{remark}{more}\n```\n{chr(10).join([head, *lines])}\n```"


def _constrained(solved: bool, solution: str, met: Sequence[int], choices: Sequence[str], draw: Draw) -> str:
    """The rollout's text; with ``choices`` one of them: the solution when solved and allowed, else another one."""
    if not choices:
        return solution if solved else "PARTLY " + " ".join(map(str, met)) if met else "I do not know"
    if solved and solution in choices:
        return solution
    return draw.choice([choice for choice in choices if choice != solution] or choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependentRules(_Rules):
    """Rules that do not touch each other: example i is solved when the prompt carries rule ``i % n_rules``.

    Args:
        n_rules: Number of different rules, ≥ 1.
        p_improve: Probability that a reflection adds one rule named in the feedback; else it loses one.
        p_patch: Probability that a patch keeps all rules of all fenced blocks; else it loses one.
        noise: Probability that a rollout's outcome is flipped (fixed by the request: the same one flips again).
        remark_words: Length of the free text before a new prompt, in short phrases.
        seed: Key of all draws.

    Raises:
        SetupError: for numbers out of range.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictingRules(_Rules):
    """Rules that exclude each other, so that specialists arise: no prompt solves more than ``1 / group`` of the data.

    Rules ``k * group`` to ``k * group + group - 1`` are rivals: with two of them in the prompt, the examples of both
    fail. A patch unites them all the same: here combining prompts can hurt.

    Args:
        group: Number of rivals in a group, ≥ 2.
        p_swap: Probability that a reflection that adds a rule takes its rivals out.
        n_rules, p_improve, p_patch, noise, remark_words, seed: as in `IndependentRules`.
    """

    group: int = 2
    p_swap: float = 0.5

    def __post_init__(self) -> None:
        _Rules.__post_init__(self)
        if self.group < 2 or not 0.0 <= self.p_swap <= 1.0:
            raise SetupError(f"expected group ≥ 2 and p_swap from 0 to 1; got group={self.group}, p_swap={self.p_swap}")

    def met(self, needs: Sequence[int], have: frozenset[int]) -> tuple[int, ...]:
        """Those of the needed rules that are in the prompt without a rival."""
        return tuple(rule for rule in needs if rule in have and not self._rivals(rule) & have)

    def learn(self, have: frozenset[int], rule: int, draw: Draw) -> frozenset[int]:
        """Adds the rule; with probability ``p_swap`` its rivals go."""
        return (have - self._rivals(rule) if draw.uniform() < self.p_swap else have) | {rule}

    def _rivals(self, rule: int) -> frozenset[int]:
        first = rule - rule % self.group
        return frozenset(range(first, first + self.group)) - {rule}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitingRules(_Rules):
    """Rules that work together: an example is solved when the prompt carries all ``unite`` neighbouring rules it needs.

    Less than all earns ``partial_credit * share``, so the union of two prompts is worth more than both together.

    Args:
        unite: Number of rules an example needs, from 2 to ``n_rules``.
        partial_credit: Score of an almost complete set, in [0, 1): k of m rules score ``partial_credit * k / m``.
        n_rules, p_improve, p_patch, noise, remark_words, seed: as in `IndependentRules`.
    """

    unite: int = 2
    partial_credit: float = 0.5

    def __post_init__(self) -> None:
        _Rules.__post_init__(self)
        if not 2 <= self.unite <= self.n_rules or not 0.0 <= self.partial_credit < 1.0:
            raise SetupError(
                f"expected unite from 2 to n_rules={self.n_rules} and partial_credit in [0, 1); "
                f"got unite={self.unite}, partial_credit={self.partial_credit}"
            )

    def needs(self, i: int) -> tuple[int, ...]:
        """Rule ``i % n_rules`` and its next neighbours."""
        return tuple((i + k) % self.n_rules for k in range(self.unite))

    def credit(self, share: float) -> float:
        """Partial credit, always below 1."""
        return self.partial_credit * share
