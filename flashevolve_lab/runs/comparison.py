"""Several runs side by side: a table of what they came to, and figures of their scores, rates, gaps, timelines and runtime.

Owns `Comparison` and `compare`. One rule a change must keep: a comparison knows runs and labels; what is drawn is the plots'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flashevolve_lab.core import Entry
from flashevolve_lab.errors import SetupError
from flashevolve_lab.runs.handle import Run

if TYPE_CHECKING:
    import pandas as pd

    from flashevolve_lab.plots import Figure, GapsInfo, RatesInfo, RuntimeInfo, ScoreInfo, StackedGanttInfo


class Fed(Protocol):
    """What every view has."""

    def feed(self, entries: Sequence[Entry]) -> object:
        """Take in the log."""


View = TypeVar("View", bound=Fed)


class Comparison:
    """Runs under the labels they were given. Comparing is only fair at equal budgets, on the same model and the same seeds.

    Attributes:
        groups: Label → its runs; several runs of one label are seeds of one configuration.
        runs: One name a run → run: the label, or ``label #2`` where a label has several.
    """

    def __init__(self, groups: Mapping[str, Run | Sequence[Run]]) -> None:
        self.groups = {label: (group,) if isinstance(group, Run) else tuple(group) for label, group in groups.items()}
        self.runs = {name: run for label, group in self.groups.items() for name, run in _named(label, group)}

    def table(self) -> pd.DataFrame:
        """One row a run: best score, proposals and accepted ones a minute, verdicts on stale work, and what was spent."""
        import pandas as pd

        return pd.DataFrame([_row(run) for run in self.runs.values()], index=list(self.runs))

    def score(self, x: str = "metric_calls") -> Figure[ScoreInfo]:
        """Best score so far of every run against seconds, metric_calls, llm_calls, tokens, dollars or proposals."""
        from flashevolve_lab.plots import score_figure
        from flashevolve_lab.views import Progress

        return score_figure({name: _fed(Progress(), run).snapshot() for name, run in self.runs.items()}, x)

    def rates(self, per: str = "minute", *, proposals: bool = False) -> Figure[RatesInfo]:
        """Accepted proposals by configuration: a bar a label, its seeds as points with the mean's 95% interval.

        Args:
            per: ``"minute"`` of lab time, ``"metric_calls"`` (a thousand) or ``"tokens"`` (a million).
            proposals: Draw all proposals too, beside the accepted ones.
        """
        from flashevolve_lab.plots import rates_figure
        from flashevolve_lab.views import Progress

        runs = {label: [_fed(Progress(), run).snapshot() for run in group] for label, group in self.groups.items()}
        return rates_figure(runs, per, proposals=proposals)

    def gaps(self, where: str = "all") -> Figure[GapsInfo]:
        """How far behind stale work was and what was done about it, a panel a label (seeds together).

        Args:
            where: Only verdicts at ``"dequeue"`` (before validation), at ``"commit"`` or by ``"hand"``; ``"all"``.
        """
        from flashevolve_lab.plots import gaps_figure
        from flashevolve_lab.views import StalenessFeed

        runs = {label: [_fed(StalenessFeed(), run).snapshot() for run in group] for label, group in self.groups.items()}
        return gaps_figure(runs, where)

    def gantt(self, start: float | None = None, end: float | None = None) -> Figure[StackedGanttInfo]:
        """The Gantts of all runs one above the other on one time axis, in the order given; ``start``, ``end``: seconds."""
        from flashevolve_lab.plots import stacked_gantt_figure
        from flashevolve_lab.views import Timeline

        return stacked_gantt_figure({name: _fed(Timeline(), run).snapshot() for name, run in self.runs.items()}, start, end)

    def runtime(
        self,
        *,
        upto: int | None = None,
        acceptance: float | None = None,
        validation: int | None = None,
        workers: int | None = None,
        step_s: float | None = None,
        rollout_s: float | None = None,
        spread: float | None = None,
    ) -> Figure[RuntimeInfo]:
        """The speed-up of steps of k proposals that `batched_runtime` predicts, beside the speed-up that these runs measured.

        The model's quantities are estimated from the runs with one proposal at a time (`Sequential`, `Batched(1, 1)`), which
        the others are measured against.

        Args:
            upto: The largest k of the curve; by default the largest of the runs, at least 16.
            acceptance, validation, workers, step_s, rollout_s, spread: As for `batched_runtime`, instead of the estimate.
                ``workers`` is estimated as the calls in flight the run was allowed: give it where the server has fewer slots.
        """
        from flashevolve_lab.plots import runtime_figure
        from flashevolve_lab.views import Runtime

        runs = {label: [_fed(Runtime(), run).snapshot() for run in group] for label, group in self.groups.items()}
        given = {"acceptance": acceptance, "validation": validation, "workers": workers, "step_s": step_s}
        given |= {"rollout_s": rollout_s, "spread": spread}
        return runtime_figure(runs, {name: value for name, value in given.items() if value is not None}, upto=upto)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.runs)}>\n{self.table()}"

    def _repr_html_(self) -> str:
        from flashevolve_lab.widgets import AS_IT_IS

        return f'<div class="{AS_IT_IS}">{self.table().to_html(escape=True)}</div>'


def compare(runs: Mapping[str, Run | Sequence[Run]]) -> Comparison:
    """Compare runs: ``lab.compare({"Full": run_a, "Guarded": run_b})``, then ``.table()``, ``.score()``, ``.rates()``, …

    Args:
        runs: Label → a run, or the runs of one configuration with different seeds.

    Raises:
        SetupError: something else.
    """
    groups = list(runs.values()) if isinstance(runs, Mapping) else []
    if not groups or not all(_is_group(group) for group in groups):
        raise SetupError(
            "compare: expected a mapping of label → run, or → a list of its runs (seeds), "
            'e.g. {"Full": run_a, "Guarded": [run_b, run_c]}'
        )
    return Comparison(runs)


def _is_group(group: object) -> bool:
    several = isinstance(group, Sequence) and len(group) > 0 and all(isinstance(run, Run) for run in group)
    return isinstance(group, Run) or several


def _named(label: str, group: Sequence[Run]) -> list[tuple[str, Run]]:
    if len(group) == 1:
        return [(label, group[0])]
    return [(f"{label} #{i}", run) for i, run in enumerate(group, start=1)]


def _fed(view: View, run: Run) -> View:
    """A view that has seen the run's whole log."""
    view.feed(run.entries)
    return view


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
