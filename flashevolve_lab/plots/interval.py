"""A mean over seeds, with the interval that few seeds allow.

Owns `Estimate`. One rule a change must keep: one run gives no interval, because one run knows nothing of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# The 97.5% quantiles of Student's t for 1 to 30 degrees of freedom; beyond, its expansion in 1/ν is exact to 0.001.
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
Z_975 = 1.959964


@dataclass(frozen=True, slots=True)
class Estimate:
    """Values of single runs, their mean, and its 95% interval by Student's t (low = mean = high with one run)."""

    values: tuple[float, ...]
    mean: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """``2.4`` or ``2.4 [1.9, 2.9] of 3 runs``."""
        if len(self.values) < 2:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}] of {len(self.values)} runs"


def estimate(values: Iterable[float], *, least: float = -math.inf) -> Estimate:
    """The mean of at least one value and its 95% interval, cut at ``least`` (a rate is never below 0)."""
    kept = tuple(values)
    mean = fmean(kept)
    half = t_975(len(kept) - 1) * stdev(kept) / math.sqrt(len(kept)) if len(kept) > 1 else 0.0
    return Estimate(kept, mean, max(least, mean - half), mean + half)


def t_975(freedom: int) -> float:
    """The 97.5% quantile of Student's t; ``freedom`` ≥ 1."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = Z_975
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def seeds_note(estimates: Sequence[Estimate]) -> str:
    """What a mark and its whiskers are, when there are several runs of a label; else ""."""
    sizes = sorted({len(each.values) for each in estimates})
    if not sizes or sizes[-1] < 2:
        return ""
    runs = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"mean of {runs} runs, 95% t-interval"
