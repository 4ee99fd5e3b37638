"""What the simulated model knows: one pure function per landscape, from what was asked to what is answered."""

import re

import pytest

from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm.landscapes import (
    ConflictingRules,
    Draw,
    IndependentRules,
    UnitingRules,
    content_key,
    fenced,
    role_of,
    rules_in,
)
from flashevolve_lab.llm.seam import Request, chat
from flashevolve_lab.tasks import Task
from flashevolve_lab.tasks.simulated import simulated_task

LANDSCAPES = [IndependentRules(), ConflictingRules(), UnitingRules()]


def answer(landscape, role, messages, *, choices=(), variant=""):
    request = Request(chat(messages) if isinstance(messages, str) else messages, role=role, choices=choices)
    return landscape.answer(request, Draw(landscape.seed, content_key(role, request.messages), variant))


def prompt(*rules):
    return "Do it well.\n" + "\n".join(f"- RULE-{rule}. Check." for rule in rules)


def rollout(landscape, example, text, **options):
    return answer(landscape, "task", chat(example["input"], system=text), **options)


def score(landscape, i, *rules):
    example = landscape.examples(1, i)[0]
    return landscape.metric(example, rollout(landscape, example, prompt(*rules)))


def reflection(landscape, rules, wanted, variant=""):
    feedback = "\n".join(f"Feedback: Wrong. The required rule is RULE-{rule}." for rule in wanted)
    asked = f"Improve this prompt {variant}:\n```\n{prompt(*rules)}\n```\nWhat happened:\n```\n{feedback}\n```\nGo on."
    return answer(landscape, "reflection", asked)


def learned(landscape, rules, wanted, variant=""):
    return set(rules_in(fenced(reflection(landscape, rules, wanted, variant))[0]))


# --- the task --------------------------------------------------------------------------------------------------------


def test_an_example_is_solved_exactly_when_the_prompt_carries_its_rule():
    world = IndependentRules(n_rules=10)
    assert score(world, 13, 3, 7) == (1.0, "Correct.")
    assert score(world, 13, 7, 30) == (0.0, "Wrong. The required rule is RULE-3.")


def test_the_rule_counts_only_in_the_system_message():
    world = IndependentRules()
    request = chat("Simulated question 4: this item needs rule 4. RULE-4.", system="Answer.")
    assert answer(world, "task", request) == "I do not know"


def test_examples_of_the_benchmark_and_of_the_lab_are_answered_alike():
    request = chat("Question 105: this item needs rule 5", system="Answer the question. Follow these rules: RULE-5.")
    assert answer(IndependentRules(), "task", request) == "ANSWER 5"


def test_examples_are_numbered_from_the_offset():
    assert [e["id"] for e in IndependentRules().examples(3, 100)] == [100, 101, 102]


@pytest.mark.parametrize("world", LANDSCAPES, ids=lambda w: type(w).__name__)
def test_the_seed_prompt_solves_nothing_and_all_texts_say_they_are_simulated(world):
    example = world.examples(1)[0]
    assert world.metric(example, rollout(world, example, world.seed_prompt))[0] == 0.0
    for text in (example["input"], world.seed_prompt, reflection(world, (1,), (2,))):
        assert "simulated" in text.lower()


def test_noise_flips_that_share_of_the_outcomes_always_for_the_same_requests():
    world = IndependentRules(noise=0.2)
    outputs = [rollout(world, example, prompt()) for example in world.examples(2000)]
    assert outputs == [rollout(world, example, prompt()) for example in world.examples(2000)]
    assert 340 < sum(output != "I do not know" for output in outputs) < 460


def test_allowed_choices_bound_the_answer_and_a_solved_example_gets_the_right_one():
    world, example = IndependentRules(), IndependentRules().examples(1, 6)[0]
    choices = ("ANSWER 5", "ANSWER 6", "ANSWER 7")
    assert rollout(world, example, prompt(6), choices=choices) == "ANSWER 6"
    assert rollout(world, example, prompt(5), choices=choices) in {"ANSWER 5", "ANSWER 7"}


# --- reflection and patch --------------------------------------------------------------------------------------------


def test_a_successful_reflection_adds_exactly_one_rule_that_the_feedback_names_and_the_prompt_lacks():
    world = IndependentRules(p_improve=1.0)
    assert learned(world, (1, 2), (2, 8)) == {1, 2, 8}


def test_a_failed_reflection_loses_one_rule():
    world = IndependentRules(p_improve=0.0)
    assert len(learned(world, (1, 2, 3), (8,)) & {1, 2, 3}) == 2


def test_reflections_succeed_with_the_given_probability():
    world = IndependentRules(p_improve=0.3)
    wins = sum(learned(world, (1,), (9,), variant=str(k)) == {1, 9} for k in range(1000))
    assert 250 < wins < 350


def test_a_reflection_is_free_text_and_one_closed_fenced_block_whose_wording_varies():
    replies = {reflection(IndependentRules(remark_words=20), (1,), (2,), variant=str(k)) for k in range(20)}
    assert len(replies) == 20
    for reply in replies:
        assert re.fullmatch(r"[^`]{20,}\n```\n[^`]+\n```", reply)


def test_the_first_fenced_block_is_the_current_prompt_even_after_fences_mentioned_in_a_sentence():
    assert fenced("Answer inside ``` fences.\n````text\nRULE-1.\n```\nnested\n```\n````\nmore\n```\nRULE-2.\n```") == [
        "RULE-1.\n```\nnested\n```\n",
        "RULE-2.\n",
    ]
    assert fenced("old ```RULE-1.``` and ```RULE-2.```") == ["RULE-1.", "RULE-2."]


def test_a_patch_unites_the_rules_of_all_fenced_blocks():
    asked = f"Merge.\n```\n{prompt(1, 2)}\n```\nand\n```\n{prompt(2, 9)}\n```\n"
    assert rules_in(answer(IndependentRules(p_patch=1.0), "patch", asked)) == {1, 2, 9}
    assert len(rules_in(answer(IndependentRules(p_patch=0.0), "patch", asked))) == 2


def several(current, *revisions):
    shown = "\n".join(f"Revision {n}:\n```\n{prompt(*rules)}\n```\n" for n, rules in enumerate(revisions, 1))
    return f"Merge.\n{shown}\nThe current version:\n```\n{prompt(*current)}\n```\n"


def test_a_patch_asked_about_several_revisions_says_of_each_what_becomes_of_it_and_unites_all_rules():
    said = answer(IndependentRules(p_patch=1.0), "patch", several((1, 2), (1,), (1, 9), (5,)))
    assert re.findall(r"DECISION (\d): (\w+)", said) == [("1", "discard"), ("2", "patch"), ("3", "patch")]
    assert "IDEA 1: subsumed" in said and "IDEA 2: complementary: RULE-9" in said
    assert rules_in(fenced(said)[0]) == {1, 2, 5, 9}
    assert said == answer(IndependentRules(p_patch=1.0), "patch", several((1, 2), (1,), (1, 9), (5,)))
    assert len(rules_in(fenced(answer(IndependentRules(p_patch=0.0), "patch", several((1, 2), (1,), (1, 9))))[0])) == 2


def test_a_patch_of_which_nothing_is_left_brings_no_text():
    said = answer(IndependentRules(), "patch", several((1, 2), (1,), (2,)))
    assert re.findall(r"DECISION \d: (\w+)", said) == ["discard", "discard"] and "```" not in said


def test_where_rules_exclude_each_other_a_patch_of_several_says_so():
    said = answer(ConflictingRules(p_patch=1.0), "patch", several((0,), (1,), (2,), (3,)))
    assert "IDEA 1: conflicting: RULE-1, a rival of RULE-0" in said and "IDEA 2: conflicting: RULE-2, a rival of RULE-3" in said
    assert "conflicting" not in answer(IndependentRules(), "patch", several((0,), (1,), (2,)))


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("sim-task", "task"),
        ("task", "task"),
        ("reflection", "reflection"),
        ("my-reflect", "reflection"),
        ("patch", "patch"),
    ],
)
def test_a_role_or_model_name_says_what_is_asked(name, role):
    assert role_of(name) == role


# --- the other landscapes --------------------------------------------------------------------------------------------


def test_rival_rules_cancel_each_other_so_only_specialists_score():
    world = ConflictingRules(n_rules=10, group=2)
    assert score(world, 4, 4)[0] == 1.0
    assert score(world, 4, 4, 5) == (0.0, "Wrong. The required rule is RULE-4.")
    assert score(world, 5, 4, 5)[0] == 0.0
    assert score(world, 4, 3, 4)[0] == 1.0


def test_a_reflection_that_swaps_takes_the_rivals_out():
    assert learned(ConflictingRules(p_improve=1.0, p_swap=1.0), (4, 7), (5,)) == {5, 7}
    assert learned(ConflictingRules(p_improve=1.0, p_swap=0.0), (4, 7), (5,)) == {4, 5, 7}


def test_uniting_two_prompts_is_worth_more_than_both_together():
    world = UnitingRules(n_rules=10, unite=2, partial_credit=0.5)

    def total(*rules):
        return sum(score(world, i, *rules)[0] for i in range(10))

    assert score(world, 3, 3) == (0.25, "Partly right. The required rule is RULE-4.")
    assert total(2, 4) == total(3, 5) == 1.0
    assert total(2, 3, 4, 5) == 3.5 > total(2, 4) + total(3, 5)
    assert total(*range(10)) == 10.0


# --- purity and settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", LANDSCAPES, ids=lambda w: type(w).__name__)
def test_an_answer_depends_on_the_content_and_the_seed_and_on_no_order(world):
    asked = [(tuple(range(k % 5)), (k % 7,), str(k)) for k in range(50)]
    forwards = [reflection(world, *a) for a in asked]
    assert [reflection(world, *a) for a in reversed(asked)] == forwards[::-1]
    assert [reflection(type(world)(seed=1), *a) for a in asked] != forwards


def test_draws_with_the_same_key_are_the_same_and_have_the_moments_they_promise():
    assert [Draw("a", 1).uniform() for _ in range(2)] == [Draw("a", 1).uniform()] * 2
    draw = Draw("moments")
    numbers = [draw.lognormal(2.5, 0.6) for _ in range(20_000)]
    assert abs(sum(numbers) / len(numbers) - 2.5) < 0.05
    assert draw.lognormal(2.5, 0.0) == 2.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: IndependentRules(n_rules=0),
        lambda: IndependentRules(p_improve=1.5),
        lambda: ConflictingRules(group=1),
        lambda: UnitingRules(unite=1),
        lambda: UnitingRules(partial_credit=1.0),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_runs(make):
    with pytest.raises(SetupError, match="expected"):
        make()


@pytest.mark.parametrize("world", LANDSCAPES, ids=lambda w: type(w).__name__)
def test_every_landscape_makes_a_task_whose_validation_examples_are_not_its_training_examples(world):
    task = simulated_task(world, n_train=20, n_val=10)
    assert isinstance(task, Task)
    assert (len(task.train), len(task.val)) == (20, 10)
    assert not {e["id"] for e in task.train} & {e["id"] for e in task.val}
    assert task.metric(task.val[0], "nonsense")[0] == 0.0
