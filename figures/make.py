"""Makes the example figures of this folder: ``python figures/make.py [name …]`` (offline, about a minute).

Runs of GEPA on the simulated model server, on virtual time: the same seeds give the same files.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flashevolve_lab as lab

HERE = Path(__file__).parent
LANDSCAPE = lab.IndependentRules(n_rules=20, p_improve=0.6)
SEEDS = (0, 1, 2, 3, 4)


class Examples:
    """The figures, by the names of their files. ``folder``: for the runs."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.made: dict[str, lab.Run] = {}

    def run(self, name: str, *, schedule: Any, staleness: Any = None, seed: int = 0, metric_calls: int = 2_500) -> lab.Run:
        """A finished run; each is made once."""
        if name in self.made:
            return self.made[name]
        run = lab.start(
            lab.simulated_task(LANDSCAPE, n_train=60, n_val=50),
            llm=lab.Simulated(LANDSCAPE, seed=seed),
            schedule=schedule,
            staleness=staleness or lab.Guarded(max_gap=3, beyond="update"),
            budget=lab.Budget(metric_calls=metric_calls),
            clock=lab.Virtual(),
            seed=seed,
            name=name,
            folder=self.folder,
        )
        run.wait()
        self.made[name] = run
        return run

    def seeds(self, name: str, schedule: Any, seeds: Sequence[int] = SEEDS, **more: Any) -> list[lab.Run]:
        """The same configuration with several seeds."""
        return [self.run(f"{name}-{seed}", schedule=schedule, seed=seed, **more) for seed in seeds]

    def score(self) -> Any:
        """Score against time."""
        return self.run("example", schedule=lab.Pipelined(8)).figures.score(x="seconds")

    def gantt(self) -> Any:
        """The first half minute of a pipelined run."""
        return self.run("example", schedule=lab.Pipelined(8)).figures.gantt(end=30)

    def gantt_pair(self) -> Any:
        """The synchronous run above the asynchronous one."""
        runs = {
            "synchronous, one by one": self.run("k1-0", schedule=lab.Sequential()),
            "asynchronous, 8 in flight": self.run("example", schedule=lab.Pipelined(8)),
        }
        return lab.compare(runs).gantt(end=20)

    def gaps(self) -> Any:
        """What three policies did about stale work."""
        policies = {
            "Full": lab.Full(),
            "Guarded, update beyond 4": lab.Guarded(max_gap=4, beyond="update"),
            "Reflective": lab.Reflective(),
        }
        runs = {
            label: self.seeds(f"gaps-{label[:4]}", lab.Pipelined(16), SEEDS[:3], staleness=p) for label, p in policies.items()
        }
        return lab.compare(runs).gaps()

    def rates(self) -> Any:
        """Accepted proposals per minute, one by one, in batches and in a pipeline."""
        runs = {
            "Sequential": self.seeds("k1", lab.Sequential()),
            "Batched 2×2": self.batched(2, 2),
            "Batched 4×4": self.batched(4, 4),
            "Pipelined 4": self.pipelined(4),
            "Pipelined 16": self.pipelined(16),
        }
        return lab.compare(runs).rates(proposals=True)

    def batched(self, p: int, n: int) -> list[lab.Run]:
        """Steps of p × n proposals."""
        return self.seeds(f"batched-{p}x{n}", lab.Batched(p, n))

    def pipelined(self, depth: int) -> list[lab.Run]:
        """``depth`` proposals in flight."""
        return self.seeds(f"pipelined-{depth}", lab.Pipelined(depth))

    def runtime(self) -> Any:
        """The runtime model of batched GEPA beside measured runs."""
        one = {"Sequential": self.seeds("k1", lab.Sequential())}
        batched = {f"Batched {p}×{n}": self.batched(p, n) for p, n in [(2, 1), (2, 2), (4, 2), (4, 4), (8, 4)]}
        pipelined = {f"Pipelined {depth}": self.pipelined(depth) for depth in (4, 16, 32)}
        return lab.compare({**one, **batched, **pipelined}).runtime()


WIDTHS = {"score": "column", "gantt": "page", "gantt_pair": "page", "gaps": "column", "rates": "column", "runtime": "column"}


def main(names: Sequence[str]) -> None:
    """Write the figures of these names, or all, as PDF and PNG."""
    with tempfile.TemporaryDirectory() as folder:
        examples = Examples(folder)
        for name in names or list(WIDTHS):
            make: Callable[[], Any] = getattr(examples, name)
            figure = make()
            for suffix in ("pdf", "png"):
                figure.export(HERE / f"{name}.{suffix}", width=WIDTHS[name])


if __name__ == "__main__":
    main(sys.argv[1:])
