"""What went wrong in systems like this (`reference/pitfalls.md`, 1 to 24): each kind has a test with the right behaviour.

`WHERE` is the index; a few kinds that no room owns are tested here.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import RunState, apply
from flashevolve_lab.core import events as ev

TESTS = Path(__file__).parent
SHELL, PLACES, PATCHING = "engine/test_shell.py", "engine/test_places.py", "algorithms/test_patching.py"
HANDLE, OPENAI, GATEWAY, GEPA = "runs/test_handle.py", "llm/test_openai.py", "llm/test_gateway.py", "algorithms/test_gepa.py"

WHERE: dict[int, tuple[str, ...]] = {
    1: (
        f"{SHELL}::test_failures_and_retries_are_charged_and_the_budget_holds",
        f"{SHELL}::test_a_bad_metric_leaves_its_sample_missing_and_counted",
        f"{SHELL}::test_a_log_that_cannot_be_written_ends_the_run_and_its_calls",
    ),
    2: (f"{SHELL}::test_a_bug_in_the_rules_ends_the_run_and_the_log_says_so",),
    3: (f"{SHELL}::test_one_failed_sample_of_a_hundred_does_not_lose_the_other_99",),
    4: (
        f"{SHELL}::test_a_hung_call_meets_its_deadline_and_is_tried_again",
        f"{PLACES}::test_a_hung_metric_costs_its_sample_and_not_the_run",
    ),
    5: (
        f"{SHELL}::test_when_every_reflection_fails_the_run_ends_with_the_cause_and_keeps_its_work",
        f"{HANDLE}::test_when_every_reflection_fails_waiting_raises_with_the_cause",
    ),
    6: (f"{SHELL}::test_a_raising_child_of_a_batch_does_not_lose_its_siblings",),
    7: (
        f"{SHELL}::test_no_dimension_of_the_budget_is_exceeded_and_the_end_names_it",
        "test_standing_properties.py::test_the_budget_is_never_exceeded_every_job_ends_and_every_invariant_holds",
    ),
    8: (
        "test_pitfalls.py::test_no_more_proposals_calls_and_waiting_items_than_the_settings_allow",
        f"{GATEWAY}::test_no_more_calls_are_in_flight_than_the_limit_and_all_get_their_answer",
    ),
    9: (
        f"{SHELL}::test_a_stop_ends_within_a_second_though_calls_hang_for_ever",
        f"{SHELL}::test_a_stop_keeps_what_is_finished_and_lets_nothing_start",
        f"{HANDLE}::test_an_interrupt_of_the_kernel_leaves_the_run_going",
    ),
    10: (
        f"{GATEWAY}::test_a_429_is_waited_out_as_asked_by_all_calls_of_the_server",
        f"{GATEWAY}::test_a_burst_of_429_lowers_the_limit_once_and_answers_raise_it_again",
    ),
    11: ("core/test_step.py::test_an_item_accepted_at_its_dequeue_is_judged_again_at_its_commit",),
    12: ("core/test_step.py::test_after_twice_the_depth_discards_in_a_row_the_effective_depth_halves",),
    13: (
        f"{PATCHING}::test_an_unusable_patch_is_refused_with_its_raw_text_and_the_child_is_updated_instead",
        f"{PATCHING}::test_every_patched_text_passes_the_gate_against_the_current_version_before_it_is_validated",
    ),
    14: ("test_pitfalls.py::test_a_resume_knows_its_best_and_does_not_score_the_seed_again",),
    15: ("core/test_population.py::test_the_front_is_what_gepas_pruning_leaves",),
    16: (f"{GEPA}::test_a_text_that_exists_already_is_refused_whatever_became_of_it",),
    17: (f"{GEPA}::test_a_perfect_minibatch_ends_the_proposal_before_it_costs_a_reflection",),
    18: (f"{GEPA}::test_the_cache_is_keyed_by_content_and_split",),
    19: (f"{PLACES}::test_a_slow_synchronous_function_does_not_block_the_loop",),
    20: (
        "algorithms/test_extraction.py::test_a_text_is_taken_whole",
        "algorithms/test_extraction.py::test_in_doubt_a_reply_is_refused_with_its_kind_and_its_raw_text",
    ),
    21: ("test_pitfalls.py::test_a_reflection_larger_than_the_context_is_cut_to_fit_and_the_log_says_so",),
    22: (
        f"{SHELL}::test_what_user_code_prints_and_raises_does_no_harm",
        f"{OPENAI}::test_odd_unicode_goes_out_and_comes_in_and_lone_surrogates_become_replacement_characters",
    ),
    23: ("runs/test_start.py::test_start_returns_at_once_and_the_first_entries_are_there",),
    24: (
        f"{PLACES}::test_an_async_metric_that_calls_asyncio_run_works_and_only_then_is_nest_asyncio2_loaded",
        f"{PLACES}::test_a_run_with_a_synchronous_metric_that_calls_asyncio_run_works",
    ),
}


def test_each_kind_has_a_test() -> None:
    assert sorted(WHERE) == list(range(1, 25))


@pytest.mark.parametrize("kind", WHERE)
def test_each_test_of_the_index_exists(kind: int) -> None:
    for place in WHERE[kind]:
        file, name = place.split("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
        assert name in defined, place


# --- kinds that no room owns ------------------------------------------------------------------------------------------------

LAND = lab.IndependentRules(n_rules=10, p_improve=0.8)


@pytest.mark.parametrize("schedule", [lab.Sequential(), lab.Pipelined(1), lab.Pipelined(5), lab.Batched(2, 3)], ids=repr)
def test_no_more_proposals_calls_and_waiting_items_than_the_settings_allow(schedule: Any, tmp_path: Path) -> None:
    llm = lab.Simulated(LAND, speed=lab.FixedLatency(slots=1000))
    start = {"schedule": schedule, "limits": lab.Limits(concurrency=7), "clock": lab.Virtual(), "folder": tmp_path}
    run = lab.start(lab.simulated_task(LAND, 30, 20), llm=llm, budget=lab.Budget(metric_calls=600), **start)
    run.wait(30)
    most: Counter[str] = Counter()
    state = RunState()
    for entry in run.entries:
        apply(state, entry)
        seen = {"proposals": state.in_flight, "calls": len(state.calls), "items": len(state.items)}
        most |= Counter(seen)
    assert most["proposals"] == schedule.depth
    assert most["calls"] == 7 == llm.stats()["max_in_service"]
    assert most["items"] == schedule.depth


def test_a_resume_knows_its_best_and_does_not_score_the_seed_again(tmp_path: Path) -> None:
    task, llm = lab.simulated_task(LAND, 30, 20), lab.Simulated(LAND)
    again = {"llm": llm, "clock": lab.Virtual()}
    run = lab.start(task, budget=lab.Budget(metric_calls=300), folder=tmp_path, name="r", **again)  # type: ignore[arg-type]
    run.wait(30)
    best, spent = run.best, run.status.spent
    assert best is not None and best.score > 0
    resumed = lab.resume(run.path, task=task, budget=lab.Budget(metric_calls=600), **again)  # type: ignore[arg-type]
    resumed.wait(30)
    assert resumed.best is not None and resumed.best.score >= best.score
    assert resumed.status.spent["metric_calls"] > spent["metric_calls"]
    validated = [e for e in [x.event for x in resumed.entries] if isinstance(e, ev.SampleScored) and e.split == "val"]
    assert max(Counter((e.artifact, e.example) for e in validated).values()) == 1, "nothing is validated twice"
    means = [member.mean for member in resumed.state.pool.order]
    parents = {member.id: member.parents for member in resumed.state.pool.order}
    assert means[0] == 0.0 and len(parents) == len(means)


class Small(lab.Simulated):
    """A model with a context of 3,000 tokens, which refuses more as servers do."""

    context_tokens = 3_000

    async def complete(self, request: lab.Request) -> lab.Reply:
        size = sum(len(message["content"]) for message in request.messages) // 3
        if size + request.max_tokens > self.context_tokens:
            raise lab.Refused(f"400: {size} + {request.max_tokens} tokens are more than {self.context_tokens}")
        return await super().complete(request)


def test_a_reflection_larger_than_the_context_is_cut_to_fit_and_the_log_says_so(tmp_path: Path) -> None:
    task = lab.simulated_task(LAND, 12, 6)

    @lab.quick
    def wordy(example: Any, output: Any) -> tuple[float, str]:
        score, feedback = LAND.metric(example, output)
        return score, feedback + " This is explained at length." * 300

    task = lab.Task(train=task.train, val=task.val, seed=task.seed, program=task.program, metric=wordy)
    algorithm = lab.GEPA(proposer=lab.Reflect(max_tokens=500))
    run = lab.start(task, algorithm, llm=Small(LAND), budget=lab.Budget(metric_calls=150), clock=lab.Virtual(), folder=tmp_path)
    assert run.wait(30).proposals > 5
    refused = [e for e in [x.event for x in run.entries] if isinstance(e, ev.CallFinished) and e.outcome == "refused"]
    assert not refused
    notes = [
        e.result.get("note", "") for e in [x.event for x in run.entries] if isinstance(e, ev.JobFinished) and "text" in e.result
    ]
    assert notes and all("to fit the context" in note for note in notes)
