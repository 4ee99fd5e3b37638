"""Makes the example figures of this folder: ``python figures/make.py`` (offline, a few seconds).

One run of GEPA under Pipelined(8) on the simulated model server, on virtual time: the same seed gives the same files.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import flashevolve_lab as lab

HERE = Path(__file__).parent


def main() -> None:
    """Score against time, and the Gantt of its first half minute."""
    landscape = lab.IndependentRules(n_rules=20, p_improve=0.6)
    with tempfile.TemporaryDirectory() as folder:
        run = lab.start(
            lab.simulated_task(landscape, n_train=60, n_val=50),
            llm=lab.Simulated(landscape),
            schedule=lab.Pipelined(8),
            staleness=lab.Guarded(max_gap=3, beyond="update"),
            budget=lab.Budget(metric_calls=2_500),
            clock=lab.Virtual(),
            name="example",
            folder=folder,
        )
        run.wait()
        for suffix in ("pdf", "png"):
            run.figures.score(x="seconds").export(HERE / f"score.{suffix}", width="column")
            run.figures.gantt(end=30).export(HERE / f"gantt.{suffix}", width="page")


if __name__ == "__main__":
    main()
