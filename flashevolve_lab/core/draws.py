"""Keyed randomness: every draw has a name, so the order in which work completes cannot change it.

The only place of the pure rooms that touches `random`. One rule: never a shared stream.
"""

from __future__ import annotations

from random import Random


def draw(*key: object) -> Random:
    """A fresh random stream for this key, e.g. ``draw(seed, "p12", "parent")``; the same key gives the same stream."""
    return Random("/".join(str(part) for part in key))
