"""Several runs side by side: a table of what they came to, and their scores in one figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flashevolve_lab.errors import SetupError
from flashevolve_lab.runs.handle import Run

if TYPE_CHECKING:
    import pandas as pd

    from flashevolve_lab.plots import Figure


class Comparison:
    """Runs under the labels they were given. Comparing is only fair at equal budgets, on the same model and the same seeds."""

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self.runs = dict(runs)

    def table(self) -> pd.DataFrame:
        """One row a run: best score, proposals and accepted ones a minute, verdicts on stale work, and what was spent."""
        import pandas as pd

        return pd.DataFrame([_row(run) for run in self.runs.values()], index=list(self.runs))

    def score(self, x: str = "metric_calls") -> Figure[Any]:
        """Best score so far of every run against seconds, metric_calls, llm_calls, tokens, dollars or proposals."""
        from flashevolve_lab.plots import score_figure
        from flashevolve_lab.views import Progress

        snapshots = {}
        for label, run in self.runs.items():
            progress = Progress()
            progress.feed(run.entries)
            snapshots[label] = progress.snapshot()
        return score_figure(snapshots, x)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.runs)}>\n{self.table()}"

    def _repr_html_(self) -> str:
        from flashevolve_lab.widgets import AS_IT_IS

        return f'<div class="{AS_IT_IS}">{self.table().to_html(escape=True)}</div>'


def compare(runs: Mapping[str, Run]) -> Comparison:
    """Compare runs: ``lab.compare({"Full": run_a, "Guarded": run_b})``, then ``.table()`` or ``.score(x)``."""
    if not isinstance(runs, Mapping) or not runs or not all(isinstance(run, Run) for run in runs.values()):
        raise SetupError('compare: expected a mapping of label → run, e.g. {"Full": run_a, "Guarded": run_b}')
    return Comparison(runs)


def _row(run: Run) -> dict[str, Any]:
    from flashevolve_lab.views import ACTIONS

    status, counts = run.status, run.state.counts
    minutes = status.seconds / 60 or float("nan")
    verdicts = {action: counts[f"stale {action}"] for action in ACTIONS}
    return {
        "best": status.best_score,
        "proposals/min": round(status.proposals / minutes, 1),
        "accepted/min": round(status.accepted / minutes, 2),
        "proposals": status.proposals,
        "accepted": status.accepted,
        **verdicts,
        "seconds": round(status.seconds, 1),
        **{name: status.spent[name] for name in ("metric_calls", "llm_calls", "tokens")},
    }
