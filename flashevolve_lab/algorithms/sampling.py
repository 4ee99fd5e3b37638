"""Minibatches: epoch-shuffled, without overlap between concurrent proposals. Pure; the cursor is plain JSON and lives in the log."""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from typing import Any

from flashevolve_lab.core import draw


def next_minibatch(cursor: Any, seed: int, n: int, size: int, busy: Set[int]) -> tuple[list[int], dict[str, Any]]:
    """The next ``size`` examples of 0..n-1 and the cursor after them.

    Every example comes once an epoch, in an order shuffled anew for each. Examples that a proposal in flight is using (``busy``)
    are put off and come first as soon as they are free; only when fewer than ``size`` are free is overlap allowed.

    Args:
        cursor: None at first, then what the last call returned: ``{"epoch", "at", "owed"}``.
    """
    epoch, at, owed = (cursor["epoch"], cursor["at"], list(cursor["owed"])) if cursor else (0, 0, [])
    taken = [example for example in owed if example not in busy][:size]
    owed = [example for example in owed if example not in taken]
    scarce = n - len(busy) < size
    while len(taken) < size:
        if at >= n:
            epoch, at = epoch + 1, 0
        example = _order(seed, epoch, n)[at]
        at += 1
        if example in taken or (example in busy and not scarce):
            owed += [] if example in owed else [example]
        else:
            taken.append(example)
    return taken, {"epoch": epoch, "at": at, "owed": owed}


@lru_cache(maxsize=64)
def _order(seed: int, epoch: int, n: int) -> tuple[int, ...]:
    return tuple(draw(seed, "epoch", epoch).sample(range(n), n))
