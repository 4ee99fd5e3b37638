"""Text on its way to a browser: what a widget's state cannot carry, or a reader cannot see, is replaced here.

Owns the cleaning. Owns no escaping (`summary`) and no cutting of what is read whole (the front ends fold). One rule a change must
keep: whatever comes from a log, a policy or an error passes through `sayable` before it is set as a trait.
"""

from __future__ import annotations

import re

_UNSEEN = "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"
_ODD, _SPACE = re.compile(f"[{_UNSEEN}]"), re.compile(f"[\\s{_UNSEEN}]+")


def sayable(text: str) -> str:
    """The text as a trait can carry it: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def visible(text: str) -> str:
    """The text without what cannot be seen (control and direction characters) and what cannot be encoded."""
    return _ODD.sub("\ufffd", sayable(text))


def one_line(text: str, limit: int) -> str:
    """The text on one line, at most ``limit`` characters, without control characters or lone surrogates."""
    line = _SPACE.sub(" ", sayable(text[: 4 * limit])).strip()
    return line if len(line) <= limit and len(text) <= 4 * limit else line[: limit - 1] + "…"
