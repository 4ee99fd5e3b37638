"""Evidence that fits into a model's context: what records share is told once, then the longest texts are cut in the middle.

Pure. One rule a change must keep: nothing is left out silently; a mark stands where something was cut, and a note says how much.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan

from flashevolve_lab.algorithms.proposing import Record

SHARED_FROM = 200  # a common beginning shorter than this (characters) is not worth telling apart
FIELDS = ("input", "output", "feedback")
LEAST = 80  # no text is cut below this many characters


@dataclass(frozen=True, slots=True)
class Evidence:
    """Rendered records, and a note on what was done to make them fit ("" when nothing)."""

    text: str
    note: str = ""


def fitted(records: Sequence[Record], room: int | None) -> Evidence:
    """The records as text of about ``room`` characters at most (None: no limit)."""
    text = rendered(records)
    if room is None or len(text) <= room:
        return Evidence(text)
    shared, shorter = _told_once(records)
    head = f"Every input begins with this, shown here once:\n{shared}\n\n" if shared else ""
    cap = _cap(shorter, room - len(head) - (len(rendered(shorter)) - _length(shorter)))
    cut = [replace(r, input=_cut(r.input, cap), output=_cut(r.output, cap), feedback=_cut(r.feedback, cap)) for r in shorter]
    count = sum(len(getattr(record, name)) > cap for record in shorter for name in FIELDS)
    if cap < len(shared) < room:
        head = f"Every input begins with this, shown here once:\n{_cut(shared, max(cap, LEAST))}\n\n"
    done = [f"{count} texts were cut to {cap:,} characters"] if count else []
    done += [f"a beginning of {len(shared):,} characters was told once"] if shared else []
    return Evidence(head + rendered(cut), "to fit the context, " + " and ".join(done))


def rendered(records: Sequence[Record]) -> str:
    """Rollouts as the reflection reads them."""
    return "\n\n".join(
        f"## Example {i}\nInput:\n{r.input}\n\nAnswer:\n{r.output}\n\n{_told(r.score)}Feedback: {r.feedback}"
        for i, r in enumerate(records, 1)
    )


def _told(score: float) -> str:
    """A line with the score, unless it is not known."""
    return "" if isnan(score) else f"Score: {score:g}\n"


def _told_once(records: Sequence[Record]) -> tuple[str, list[Record]]:
    """The beginning all inputs share, and the records without it."""
    shared = os.path.commonprefix([record.input for record in records]) if len(records) > 1 else ""
    if len(shared) < SHARED_FROM:
        return "", list(records)
    return shared, [replace(record, input="[…]" + record.input[len(shared) :]) for record in records]


def _length(records: Sequence[Record]) -> int:
    return sum(len(getattr(record, name)) for record in records for name in FIELDS)


def _cap(records: Sequence[Record], room: int) -> int:
    """The largest length to which all texts can be cut so that they fit: the longest are cut first."""
    lengths = sorted(len(getattr(record, name)) for record in records for name in FIELDS)
    for i, length in enumerate(lengths):
        share = room // (len(lengths) - i)
        if length > share:
            return max(LEAST, share)
        room -= length
    return max(LEAST, lengths[-1])


def _cut(text: str, cap: int) -> str:
    """The text with its middle replaced by a mark when it is longer than ``cap``."""
    if len(text) <= cap:
        return text
    mark = f" […{len(text) - cap:,} characters cut…] "
    keep = max(0, cap - len(mark))
    return text[: keep * 2 // 3] + mark + text[len(text) - keep // 3 :]
