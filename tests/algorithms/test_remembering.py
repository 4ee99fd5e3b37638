"""Rejected proposals are remembered: bounded, quoted, and told only where it was asked for."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashevolve_lab as lab
from flashevolve_lab.algorithms.fitting import fitted
from flashevolve_lab.algorithms.reflecting import fenced
from flashevolve_lab.algorithms.remembering import HEAD, SHOWN, difference, remembered, told
from flashevolve_lab.core import Artifact, RunState, apply, content_hash
from flashevolve_lab.core import events as ev
from flashevolve_lab.core.state import MOST_REJECTIONS
from flashevolve_lab.llm import Request
from flashevolve_lab.llm.landscapes import Draw

WORLD = lab.UnitingRules(n_rules=20, p_improve=0.5)
TEXTS = st.lists(st.text(max_size=200), max_size=6).map(tuple)


def brief(rejected: tuple[lab.Rejected, ...] = ()) -> lab.Brief:
    records = (lab.Record("the question", "an answer", 0.0, "The required rule is RULE-7."),)
    return lab.Brief({"prompt": "Old.\n- RULE-1. x"}, "prompt", records, Random(0), rejected)


def prompt_of(brief: lab.Brief) -> str:
    return lab.Reflect().render(brief, fitted(brief.records, None), told(brief.rejected, None))


def test_the_prompt_without_rejected_texts_is_as_it_always_was() -> None:
    assert prompt_of(brief()) == lab.Reflect().render(brief(), fitted(brief().records, None))
    assert "rejected" not in prompt_of(brief())


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.text(max_size=80), max_size=6), st.lists(st.text(max_size=80), max_size=6))
def test_a_difference_is_short_and_holds_no_fence(old: list[str], new: list[str]) -> None:
    text = difference("\n".join(old), "\n".join(new))
    assert "```" not in text and len(text) <= SHOWN + 40
    assert not difference("\n".join(old), "\n".join(old))


def test_what_is_told_is_quoted_so_that_the_current_text_stays_the_first_fenced_block() -> None:
    bad = lab.Rejected(difference("Old.\n- RULE-1. x", "New ```fence```.\n- RULE-2. y"), 1.0, 2.0)
    prompt = prompt_of(brief((bad,)))
    assert HEAD.strip().split("\n")[0] in prompt and "> scored 1, and more than 2 was needed:" in prompt
    assert "> - Old." in prompt and "> + New '''fence'''." in prompt
    assert prompt.count("```") == fenced("Old.\n- RULE-1. x").count("```")


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(TEXTS, st.integers(0, 2_000))
def test_what_is_told_fits_the_room_and_the_newest_comes_first(texts: tuple[str, ...], room: int) -> None:
    rejected = [lab.Rejected(text, 0.0, 1.0) for text in texts]
    assert len(told(rejected, room)) <= max(room, 0) + 2
    assert told(rejected[:1], None) in told(rejected, None)


# --- the memory -----------------------------------------------------------------------------------------------------------


def run_of(folder: Path, remember: int, *, world: Any = WORLD, seed: int = 0, budget: int = 900, **more: Any) -> lab.Run:
    run = lab.start(
        lab.simulated_task(world, 30, 15),
        lab.GEPA(remember=remember),
        llm=lab.Simulated(world),
        schedule=lab.Pipelined(4),
        budget=lab.Budget(metric_calls=budget),
        clock=lab.Virtual(),
        folder=folder,
        seed=seed,
        **more,
    )
    run.wait(60)
    return run


def reflections(run: lab.Run) -> list[str]:
    return [e.event.prompt for e in run.entries if isinstance(e.event, ev.CallStarted) and e.event.role == "reflection"]


def test_what_the_gate_rejected_is_folded_and_bounded_and_told_of_the_parent_and_of_its_own(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0)
    state = RunState()
    for entry in run.entries:
        apply(state, entry)
    assert state.rejections and all(len(kept) <= MOST_REJECTIONS for kept in state.rejections.values())
    rejected = {e.event.artifact for e in run.entries if isinstance(e.event, ev.Gated) and not e.event.passed}
    assert {one.artifact for kept in state.rejections.values() for one in kept} <= rejected
    (parent, component), kept = max(state.rejections.items(), key=lambda pair: len(pair[1]))
    found = remembered(state, parent, component, 3)
    old = state.artifacts[parent].components[component]
    newest = [difference(old, state.artifacts[one.artifact].components[component]) for one in reversed(kept)]
    assert [one.difference for one in found][: len(kept)] == newest[:3]
    state.artifacts["child"] = Artifact("child", {component: "x"}, content_hash({component: "x"}), (parent,))
    assert remembered(state, "child", component, 3) == found, "nothing of its own yet, so that of its parent"
    assert remembered(state, parent, component, 0) == ()


def test_a_reflection_is_told_only_when_it_was_asked_for(tmp_path: Path) -> None:
    without, asked = run_of(tmp_path / "a", 0), run_of(tmp_path / "b", 2)
    assert not any("were rejected" in prompt for prompt in reflections(without))
    told_of = [prompt for prompt in reflections(asked) if "were rejected" in prompt]
    assert len(told_of) > 5 and all(1 <= prompt.count("was needed:") <= 2 for prompt in told_of)
    started = [run.entries[0].event.algorithm for run in (without, asked)]  # type: ignore[union-attr]
    assert "remember" not in started[0] and started[1]["remember"] == 2


def test_a_run_that_remembers_resumes_with_what_it_remembers(tmp_path: Path) -> None:
    run = run_of(tmp_path, 2, budget=400)
    before = len(reflections(run))
    more = lab.resume(
        run.path,
        task=lab.simulated_task(WORLD, 30, 15),
        llm=lab.Simulated(WORLD),
        clock=lab.Virtual(),
        budget=lab.Budget(metric_calls=1_500),
    )
    more.wait(60)
    assert any("were rejected" in prompt for prompt in reflections(more)[before:])


def test_the_memory_gives_way_when_the_context_is_small(tmp_path: Path) -> None:
    rejected = tuple(lab.Rejected("+ " + "x" * 500, 0.0, 1.0) for _ in range(8))
    assert len(told(rejected, 900)) <= 900 and told(rejected, 100) == ""


@pytest.mark.parametrize("nonsense", [-1, True, 1.5])
def test_nonsense_is_refused(nonsense: Any) -> None:
    with pytest.raises(lab.SetupError, match="remember"):
        lab.GEPA(remember=nonsense)


# --- the simulated model --------------------------------------------------------------------------------------------------


def answer(world: Any, prompt: str, key: object) -> str:
    return world.answer(Request(({"role": "user", "content": prompt},), 100, "reflection"), Draw(key))  # type: ignore[no-any-return]


@pytest.mark.parametrize("key", range(20))
def test_a_simulated_reflection_does_not_lose_a_rule_whose_loss_was_rejected(key: int) -> None:
    """What is not told changes nothing; what is told is only ever about the rules named there."""
    told_of = lab.Rejected("- - RULE-1. x", 0.0, 1.0)
    plain, warned = answer(WORLD, prompt_of(brief()), key), answer(WORLD, prompt_of(brief((told_of,))), key)
    assert ("RULE-1." in plain) == ("RULE-7." in plain), "it gains the wanted rule or loses the one it has"
    assert "RULE-1." in warned and "RULE-7." in warned
    assert answer(WORLD, prompt_of(brief((lab.Rejected("- - RULE-5. x", 0.0, 1.0),))), key) == plain
