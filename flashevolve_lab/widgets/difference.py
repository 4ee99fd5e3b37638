"""Word-level differences between two texts, as plain segments.

Owns `difference` and its values. Owns no markup: a segment is a kind and a text, and a front end puts the text where only
text can go. One rule a change must keep: the segments of a side joined are that side's text, whatever is in it.

Words are aligned by rapidfuzz's bit-parallel `Indel` (longest common subsequence); a run of one or two equal words between two
changes joins them, since such islands are chance. Bit-parallel still means words × words / 8 bytes, so what is large is first
cut at word sequences that occur once on either side (as in patience diff).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rapidfuzz.distance import Indel

Kind = Literal["same", "only"]
Segment = tuple[Kind, str]
Run = tuple[int, int, int]  # equal words: where they begin in the old text, in the new one, and how many
Area = tuple[int, int, int, int]  # words of the old text from, to; of the new one from, to

ISLAND = 2  # equal words between two changes that are still chance
DIRECT = 4_000_000  # words × words aligned in one go (2,000 each: about 1 ms, 0.5 MB)
MOST = 400_000_000  # … where nothing cuts them (about 0.15 s, 50 MB); beyond, they are halved
GRAM = 4  # words of a sequence that may cut

_WORD = re.compile(r"([\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]*)(\s*)")


@dataclass(frozen=True, slots=True)
class Difference:
    """Both sides in segments: what is the ``"same"`` and what is there ``"only"``.

    ``gone``, ``added``: words that only the old, only the new text has.
    """

    old: tuple[Segment, ...]
    new: tuple[Segment, ...]
    gone: int
    added: int

    @property
    def equal(self) -> bool:
        """Whether both texts are the same."""
        return all(kind == "same" for kind, _ in (*self.old, *self.new))


def difference(old: str, new: str) -> Difference:
    """What two texts do not share, word by word.

    >>> difference("Be very good.", "Be good.").old
    (('same', 'Be '), ('only', 'very '), ('same', 'good.'))
    """
    if old == new:
        same: tuple[Segment, ...] = (("same", old),) if old else ()
        return Difference(same, same, 0, 0)
    a, b = _WORD.findall(old), _WORD.findall(new)
    aligner = _Aligner([word for word, _ in a], [word for word, _ in b])
    runs = list(_without_islands(list(_joined(aligner.runs())), len(a), len(b)))
    shared = sum(n for _, _, n in runs)
    sides = _sides(a, b, runs)
    return Difference(sides[0], sides[1], len(a) - shared, len(b) - shared)


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, Difference]:
    """Component by component; one that a side lacks is empty there."""
    names = [*new, *(name for name in old if name not in new)]
    return {name: difference(old.get(name, ""), new.get(name, "")) for name in names}


class _Aligner:
    """Finds runs of equal words."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        ids: dict[str, int] = {}
        self._a = [ids.setdefault(word, len(ids)) for word in old]
        self._b = [ids.setdefault(word, len(ids)) for word in new]

    def runs(self) -> Iterator[Run]:
        """In order, not overlapping."""
        a, b = self._a, self._b
        start = end = 0
        shorter = min(len(a), len(b))
        while start < shorter and a[start] == b[start]:
            start += 1
        while end < shorter - start and a[-1 - end] == b[-1 - end]:
            end += 1
        yield 0, 0, start
        yield from self._middle((start, len(a) - end, start, len(b) - end))
        yield len(a) - end, len(b) - end, end

    def _middle(self, area: Area) -> Iterator[Run]:
        i0, i1, j0, j1 = area
        if (i1 - i0) * (j1 - j0) <= DIRECT:
            yield from self._direct(area)
            return
        i, j = i0, j0
        for anchor_i, anchor_j in [*self._anchors(area), (i1, j1)]:
            if anchor_i < i or anchor_j < j:
                continue  # inside the run before
            yield from self._between((i, anchor_i, j, anchor_j))
            n = 0
            while anchor_i + n < i1 and anchor_j + n < j1 and self._a[anchor_i + n] == self._b[anchor_j + n]:
                n += 1
            yield anchor_i, anchor_j, n
            i, j = anchor_i + n, anchor_j + n

    def _between(self, area: Area) -> Iterator[Run]:
        """What nothing cuts is halved until it is small enough: still an alignment, if not the longest."""
        i0, i1, j0, j1 = area
        if (i1 - i0) * (j1 - j0) <= MOST:
            yield from self._direct(area)
            return
        i, j = (i0 + i1) // 2, (j0 + j1) // 2
        yield from self._between((i0, i, j0, j))
        yield from self._between((i, i1, j, j1))

    def _direct(self, area: Area) -> Iterator[Run]:
        i0, i1, j0, j1 = area
        if i0 == i1 or j0 == j1:
            return
        for op in Indel.opcodes(self._a[i0:i1], self._b[j0:j1]):
            if op.tag == "equal":
                yield i0 + op.src_start, j0 + op.dest_start, op.src_end - op.src_start

    def _anchors(self, area: Area) -> list[tuple[int, int]]:
        """Starts of word sequences that occur once on either side, in an order both sides share."""
        old, new = _once(self._a, area[0], area[1]), _once(self._b, area[2], area[3])
        pairs = [(i, new[gram]) for gram, i in old.items() if gram in new]
        return _rising(sorted(pairs))


def _once(words: Sequence[int], start: int, end: int) -> dict[tuple[int, ...], int]:
    """Sequences of `GRAM` words that occur once → where."""
    grams = [tuple(words[i : i + GRAM]) for i in range(start, end - GRAM + 1)]
    counts = Counter(grams)
    return {gram: start + i for i, gram in enumerate(grams) if counts[gram] == 1}


def _rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of pairs (rising in the first) that rises in the second too (patience sorting)."""
    tops: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for k, (_, j) in enumerate(pairs):
        pile = bisect_left(tops, j)
        before.append(last[pile - 1] if pile else -1)
        tops[pile : pile + 1] = [j]
        last[pile : pile + 1] = [k]
    chain: list[tuple[int, int]] = []
    k = last[-1] if last else -1
    while k >= 0:
        chain.append(pairs[k])
        k = before[k]
    return chain[::-1]


def _joined(runs: Iterator[Run]) -> Iterator[Run]:
    """Runs that touch become one; empty ones go."""
    held: Run | None = None
    for i, j, n in runs:
        if n and held and held[0] + held[2] == i and held[1] + held[2] == j:
            held = held[0], held[1], held[2] + n
        elif n:
            if held:
                yield held
            held = i, j, n
    if held:
        yield held


def _without_islands(runs: Sequence[Run], old: int, new: int) -> Iterator[Run]:
    """Drops runs of up to `ISLAND` words that have changes on both their sides."""
    for i, j, n in runs:
        at_an_end = (i, j) == (0, 0) or (i + n, j + n) == (old, new)
        if n > ISLAND or at_an_end:
            yield i, j, n


def _sides(a: Sequence[tuple[str, str]], b: Sequence[tuple[str, str]], runs: Sequence[Run]) -> list[tuple[Segment, ...]]:
    """The segments of both sides. Equal words may still be followed by unequal white space."""
    sides = [_Side(), _Side()]
    i = j = 0
    for next_i, next_j, n in [*runs, (len(a), len(b), 0)]:
        sides[0].add("only", *(part for word in a[i:next_i] for part in word))
        sides[1].add("only", *(part for word in b[j:next_j] for part in word))
        for (word, space), (_, other) in zip(a[next_i : next_i + n], b[next_j : next_j + n], strict=True):
            kind: Kind = "same" if space == other else "only"
            for side, white in zip(sides, (space, other), strict=True):
                side.add("same", word)
                side.add(kind, white)
        i, j = next_i + n, next_j + n
    return [side.segments() for side in sides]


class _Side:
    """Joins pieces of one kind into one segment."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Kind, list[str]]] = []

    def add(self, kind: Kind, *texts: str) -> None:
        for text in texts:
            if text and self._pieces and self._pieces[-1][0] == kind:
                self._pieces[-1][1].append(text)
            elif text:
                self._pieces.append((kind, [text]))

    def segments(self) -> tuple[Segment, ...]:
        return tuple((kind, "".join(texts)) for kind, texts in self._pieces)
